package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

// goOperators are what an operator is replaced by. A comparison is moved by one and turned around.
var goOperators = map[token.Token][]string{
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
	token.EQL: {"!="}, token.NEQ: {"=="},
	token.ADD: {"-"}, token.SUB: {"+"}, token.MUL: {"/"}, token.QUO: {"*"}, token.REM: {"*"},
	token.AND: {"|"}, token.OR: {"&"}, token.SHL: {">>"}, token.SHR: {"<<"},
	token.LAND: {"||"}, token.LOR: {"&&"},
	token.ADD_ASSIGN: {"-="}, token.SUB_ASSIGN: {"+="}, token.MUL_ASSIGN: {"/="}, token.QUO_ASSIGN: {"*="},
}

// goMutants returns the mutants of a Go file. Those that do not compile are found out later.
func goMutants(file, source string) ([]mutant, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	var mutants []mutant
	replace := func(from, to token.Pos, with string) {
		mutants = append(mutants, newMutant(file, source, offset(from), offset(to), with))
	}
	operator := func(at token.Pos, op token.Token) {
		for _, other := range goOperators[op] {
			replace(at, at+token.Pos(len(op.String())), other)
		}
	}
	negate := func(cond ast.Expr) {
		switch cond.(type) {
		case *ast.CallExpr, *ast.Ident, *ast.SelectorExpr:
			text := source[offset(cond.Pos()):offset(cond.End())]
			replace(cond.Pos(), cond.End(), "!"+text)
		}
	}
	remove := func(s ast.Stmt) { replace(s.Pos(), s.End(), "") }
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.FuncDecl:
			if text, ok := leave(n.Type, source, offset); ok && n.Body != nil && len(n.Body.List) > 0 {
				replace(n.Body.Lbrace+1, n.Body.Lbrace+1, text)
			}
		case *ast.BinaryExpr:
			operator(n.OpPos, n.Op)
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				replace(n.OpPos, n.OpPos+1, "")
			}
		case *ast.IfStmt:
			negate(n.Cond)
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "min" || f.Name == "max") {
				replace(f.Pos(), f.End(), map[string]string{"min": "max", "max": "min"}[f.Name])
			}
		case *ast.BasicLit:
			if n.Kind == token.INT {
				replace(n.Pos(), n.End(), "("+n.Value+"+1)")
				replace(n.Pos(), n.End(), "("+n.Value+"-1)")
			}
		case *ast.AssignStmt:
			operator(n.TokPos, n.Tok)
			if n.Tok != token.DEFINE {
				remove(n)
			}
		case *ast.IncDecStmt:
			replace(n.TokPos, n.TokPos+2, map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok])
			remove(n)
		case *ast.ReturnStmt:
			if len(n.Results) == 0 {
				remove(n)
			}
			for _, result := range n.Results {
				if name, ok := result.(*ast.Ident); ok {
					switch name.Name {
					case "true", "false":
						replace(name.Pos(), name.End(), "!"+name.Name)
					}
				}
			}
		case *ast.ExprStmt, *ast.SendStmt, *ast.DeferStmt, *ast.GoStmt, *ast.BranchStmt:
			remove(n.(ast.Stmt))
		}
		return true
	})
	return mutants, nil
}

// leave returns the text that has a function return at once, with zero values.
func leave(f *ast.FuncType, source string, offset func(token.Pos) int) (string, bool) {
	var zeros []string
	if f.Results != nil {
		for _, field := range f.Results.List {
			text := source[offset(field.Type.Pos()):offset(field.Type.End())]
			for range max(1, len(field.Names)) {
				zeros = append(zeros, fmt.Sprintf("*new(%s)", text))
			}
		}
	}
	return " return " + strings.Join(zeros, ", ") + ";", true
}
