package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// luaTokens matches a comment or a first line with flags, a string, a number, a name, or a sign.
var luaTokens = regexp.MustCompile(`^#![^\n]*|--[^\n]*|'[^'\n]*'|\d+|[A-Za-z_]\w*|\.\.\.?|[<>=~]=|[^\s\w]`)

// luaWords are what a sign or word is replaced by.
var luaWords = map[string][]string{
	"<": {"<=", ">="}, "<=": {"<", ">"}, ">": {">=", "<="}, ">=": {">", "<"}, "==": {"~="}, "~=": {"=="},
	"+": {"-"}, "-": {"+"}, "*": {"/"}, "/": {"*"}, "%": {"*"},
	"and": {"or"}, "or": {"and"}, "not": {""}, "true": {"false"}, "false": {"true"},
	"ceil": {"floor"}, "floor": {"ceil"}, "max": {"min"}, "min": {"max"},
}

// luaMutants returns the mutants of a script.
func luaMutants(file, source string) []mutant {
	var mutants []mutant
	replace := func(from, to int, with string) {
		mutants = append(mutants, newMutant(file, source, from, to, with))
	}
	var tokens []string
	var spans [][]int
	for _, span := range luaTokens.FindAllStringIndex(source, -1) {
		if text := source[span[0]:span[1]]; !comment(text) {
			tokens, spans = append(tokens, text), append(spans, span)
		}
	}
	token := func(i int) string {
		if i < 0 || i >= len(tokens) {
			return ""
		}
		return tokens[i]
	}
	for i, text := range tokens {
		from, to := spans[i][0], spans[i][1]
		switch {
		case text == "+" && token(i+1) == "0": // makes a number of a text, as a minus would
		case text == "-" && !value(token(i-1)): // a sign
		case text == "max" || text == "min" || text == "ceil" || text == "floor":
			if token(i+1) == "(" {
				replace(from, to, luaWords[text][0])
			}
		case len(luaWords[text]) > 0:
			for _, other := range luaWords[text] {
				replace(from, to, other)
			}
		default:
			n, err := strconv.ParseInt(strings.Trim(text, "'"), 10, 64)
			if err != nil {
				continue
			}
			for _, other := range []int64{n + 1, n - 1} {
				with := strconv.FormatInt(other, 10)
				if text[0] == '\'' {
					with = "'" + with + "'"
				}
				replace(from, to, with)
			}
		}
	}
	at := 0
	for line := range strings.Lines(source) {
		if from, to, ok := luaStatement(line); ok {
			replace(at+from, at+to, "")
		}
		at += len(line)
	}
	return mutants
}

// comment reports whether a token is no code.
func comment(token string) bool {
	return strings.HasPrefix(token, "--") || strings.HasPrefix(token, "#!")
}

// value reports whether a token ends a value, so that a minus after it subtracts.
func value(token string) bool {
	switch token {
	case "", "return", "and", "or", "not", "then", "else", "in":
		return false
	}
	c := token[len(token)-1]
	return c == ')' || c == ']' || c == '\'' || c == '_' || '0' <= c && c <= '9' ||
		'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// luaStatement finds the statement in a line that holds a whole one which is not a declaration.
func luaStatement(line string) (from, to int, ok bool) {
	depth, whole := 0, true
	var first, last string
	from = -1
	for _, span := range luaTokens.FindAllStringIndex(line, -1) {
		text := line[span[0]:span[1]]
		if comment(text) {
			break
		}
		if from < 0 {
			from, first = span[0], text
		}
		to, last = span[1], text
		switch text {
		case "if", "for", "while", "function", "repeat", "(", "{", "[":
			depth++
		case "end", ")", "}", "]":
			depth--
		}
		whole = whole && depth >= 0
	}
	switch first {
	case "", "local", "else", "elseif", "end", "return", "function":
		return 0, 0, false
	}
	switch last {
	case "=", ",", "and", "or", "+", "-", "..", "then", "do":
		return 0, 0, false
	}
	return from, to, whole && depth == 0
}

// fit gives a changed script the length of the original, by spaces at its end or by the end of a comment.
func fit(original, changed string) (string, error) {
	excess := len(changed) - len(original)
	if excess <= 0 {
		return changed + strings.Repeat(" ", -excess), nil
	}
	for _, span := range luaTokens.FindAllStringIndex(changed, -1) {
		if strings.HasPrefix(changed[span[0]:], "--") && span[1]-span[0] > excess+2 {
			return changed[:span[1]-excess] + changed[span[1]:], nil
		}
	}
	return "", fmt.Errorf("no comment is longer than %d bytes", excess+2)
}
