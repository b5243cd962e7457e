package main

import (
	"go/ast"
	"go/constant"
	"slices"
	"strconv"
	"strings"
	"time"
)

// defaultName returns the name of a policy without one: the text of its limits.
func (p *pkg) defaultName(made policy) (string, bool) {
	var texts []string
	for _, limit := range made.limits {
		text, ok := p.limitText(limit)
		if !ok {
			return "", false
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	name := strings.Join(texts, ", ")
	if made.keyed {
		name += " by key"
	}
	return strconv.Quote(name), true
}

// limitText returns the text of a limit whose numbers are constant.
func (p *pkg) limitText(e ast.Expr) (string, bool) {
	rate, period, burst, ok := p.limitOf(e)
	if !ok {
		return "", false
	}
	text := strconv.FormatInt(rate, 10) + "/" + periodText(time.Duration(period))
	if burst != 0 && burst != rate {
		text += " burst " + strconv.FormatInt(burst, 10)
	}
	return text, true
}

var periods = map[string]time.Duration{
	"PerSecond": time.Second, "PerMinute": time.Minute, "PerHour": time.Hour, "PerDay": 24 * time.Hour,
}

// limitOf returns the numbers of a limit, if they are constant.
func (p *pkg) limitOf(e ast.Expr) (rate, period, burst int64, ok bool) {
	if literal, isLiteral := ast.Unparen(e).(*ast.CompositeLit); isLiteral {
		return p.literalLimit(literal)
	}
	call, _, name := p.called(e)
	switch {
	case name == "Limit.WithBurst":
		selector, isSelector := call.Fun.(*ast.SelectorExpr)
		if !isSelector {
			return 0, 0, 0, false
		}
		if rate, period, _, ok = p.limitOf(selector.X); ok {
			burst, ok = p.constant(call.Args[0])
		}
		return rate, period, burst, ok
	case periods[name] != 0:
		rate, ok = p.constant(call.Args[0])
		return rate, int64(periods[name]), 0, ok
	}
	return 0, 0, 0, false
}

func (p *pkg) literalLimit(literal *ast.CompositeLit) (rate, period, burst int64, ok bool) {
	fields := map[string]*int64{"Rate": &rate, "Period": &period, "Burst": &burst}
	for _, element := range literal.Elts {
		pair, isPair := element.(*ast.KeyValueExpr)
		if !isPair {
			return 0, 0, 0, false
		}
		key, isName := pair.Key.(*ast.Ident)
		if !isName || fields[key.Name] == nil {
			return 0, 0, 0, false
		}
		value, isConstant := p.constant(pair.Value)
		if !isConstant {
			return 0, 0, 0, false
		}
		*fields[key.Name] = value
	}
	return rate, period, burst, p.info.Types[literal].Type != nil
}

func (p *pkg) constant(e ast.Expr) (int64, bool) {
	value := p.info.Types[e].Value
	if value == nil || value.Kind() != constant.Int {
		return 0, false
	}
	return constant.Int64Val(value)
}

// periodText is how 0.1 writes a period in a policy's name.
func periodText(d time.Duration) string {
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		switch n := d / unit.size; {
		case d == unit.size:
			return unit.name
		case d%unit.size == 0 && n > 0 && (unit.size < 24*time.Hour || n <= 65535):
			return strconv.FormatInt(int64(n), 10) + unit.name
		}
	}
	return d.String()
}
