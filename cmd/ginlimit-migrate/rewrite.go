package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"slices"
	"strings"
)

const module = "github.com/ginlimit/ginlimit"

// renamed are names that only changed.
var renamed = map[string]string{
	"ErrInvalidLimit": "ErrInvalidArgument", "Failure": "FailureMode", "WithFailure": "WithFailureMode",
	"FromMemory": "FromCache", "WithDenyMemory": "WithDenyCache", "ByFirst": "ByAny", "WithConcurrency": "InFlight",
	"OutcomeRefused": "OutcomeDenied", "OutcomeError": "OutcomeFailed",
}

// byHand are names without a successor that a program can put in their place.
var byHand = map[string]string{
	"WithName":                 "the name is the first argument of Handler and Policy",
	"WithAlgorithm":            "the algorithm is the limit's: limit.WithAlgorithm(a)",
	"NewPlans":                 "limiter.NewPlans(name, life, source), with the options of the limiter",
	"LocalBuckets":             "it has no name any more: 262,144",
	"DefaultDenyMemory":        "it has no name any more: 65,536",
	"Option":                   "options are a LimiterOption, a PolicyOption or, as Option, both",
	"OutcomeAllowedFromLease":  "OutcomeAllowed, with Source FromLease",
	"OutcomeRefusedFromMemory": "OutcomeDenied, with Source FromCache",
	"OutcomeLocal":             "OutcomeAllowed or OutcomeDenied, with Source FromLocal and a Reason",
	"OutcomeOpen":              "OutcomeAllowed, with Source FromOpen",
	"OutcomeClosed":            "OutcomeFailed, with the Reason why Redis did not decide",
	"OutcomeListed":            "OutcomeSkipped for the allow list; OutcomeDenied, with CauseList, for the deny list",
	"OutcomeDryRun":            "what would have happened, with DryRun",
}

// adHoc are methods of Limiter that are gone.
var adHoc = []string{"Allow", "AllowN", "AllowUpTo", "Wait", "WaitN", "Peek", "Refund", "Block", "Reset", "Reserve"}

// rewrite rewrites the files of a package.
func (p *pkg) rewrite() (files []*file) {
	p.defaults = p.hasDefaults()
	for _, syntax := range p.files {
		base := p.fset.File(syntax.FileStart)
		text, err := os.ReadFile(base.Name())
		if err != nil {
			continue
		}
		f := &file{name: base.Name(), base: base, text: text}
		done := map[*ast.Ident]bool{} // names that the rewriting of a call has seen to
		ast.Inspect(syntax, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok {
				p.rewriteCall(f, call, done)
			}
			return true
		})
		ast.Inspect(syntax, func(node ast.Node) bool {
			if id, ok := node.(*ast.Ident); ok && !done[id] {
				p.rewriteName(f, id)
			}
			return true
		})
		files = append(files, f)
	}
	return files
}

// nameOf returns the name of what an identifier refers to, if that is ginlimit's: of a method with
// its type's.
func (p *pkg) nameOf(id *ast.Ident) string {
	object := p.info.Uses[id]
	if object == nil || object.Pkg() == nil || object.Pkg().Path() != module {
		return ""
	}
	if f, ok := object.(*types.Func); ok {
		if receiver := f.Signature().Recv(); receiver != nil {
			t := receiver.Type()
			if pointer, ok := t.(*types.Pointer); ok {
				t = pointer.Elem()
			}
			if named, ok := t.(*types.Named); ok {
				return named.Obj().Name() + "." + f.Name()
			}
		}
	}
	if v, ok := object.(*types.Var); ok && v.IsField() {
		return "field." + v.Name()
	}
	return object.Name()
}

// called returns the identifier and the name of the function of a call, if it is ginlimit's.
func (p *pkg) called(e ast.Expr) (*ast.CallExpr, *ast.Ident, string) {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return nil, nil, ""
	}
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return call, fun, p.nameOf(fun)
	case *ast.SelectorExpr:
		return call, fun.Sel, p.nameOf(fun.Sel)
	}
	return call, nil, ""
}

func (p *pkg) rewriteName(f *file, id *ast.Ident) {
	name := p.nameOf(id)
	if to, ok := renamed[name]; ok {
		f.replace(id, to)
		return
	}
	if hint, ok := byHand[name]; ok {
		f.note(id, "%s: %s", name, hint)
		return
	}
	if method, ok := strings.CutPrefix(name, "Limiter."); ok && slices.Contains(adHoc, method) {
		f.note(id, "Limiter.%s: make a policy of the limits, and call its %s", method, method)
	}
}

// policy is a call that makes a policy.
type policy struct {
	limits    []ast.Expr
	others    []ast.Expr // limits of identities
	name      string     // its text
	algorithm string     // its text
	keyed     bool
	unknown   bool // options that are not written in the call
	function  bool // WithLimitFunc
	slots     bool
}

func (p *pkg) rewriteCall(f *file, call *ast.CallExpr, done map[*ast.Ident]bool) {
	_, _, name := p.called(call)
	from := 0
	switch name {
	case "Limiter.Handler", "Limiter.Policy":
	case "New":
		from = 1
		p.noteDefaults(f, call)
	case "NewLimiter", "NewLocal":
		p.noteDefaults(f, call)
		return
	default:
		return
	}
	if len(call.Args) <= from {
		return
	}
	made := policy{limits: []ast.Expr{call.Args[from]}}
	var removed []int
	for i := from + 1; i < len(call.Args); i++ {
		option, id, name := p.called(call.Args[i])
		switch {
		case name == "":
			made.unknown = true
		case name == "WithName" && from == 0:
			made.name = f.source(option.Args[0])
			removed = append(removed, i)
			done[id] = true
		case name == "WithAlgorithm":
			made.algorithm = f.source(option.Args[0])
			removed = append(removed, i)
			done[id] = true
		case name == "WithConcurrency":
			made.slots = true
		case name == "WithLimitFunc":
			made.function = true
			if t := p.info.TypeOf(option.Args[0]); t != nil && strings.Contains(t.String(), "gin.Context") {
				f.note(option,
					"WithLimitFunc: the function is func(ctx context.Context, client string) ([]Limit, error)")
			}
		case name == "WithLimits":
			if option.Ellipsis.IsValid() {
				made.unknown = true
				continue
			}
			made.limits = append(made.limits, option.Args...)
			if from == 0 && len(option.Args) > 0 && !option.Ellipsis.IsValid() { // each is an option itself
				f.replaceRange(option.Pos(), option.Args[0].Pos(), "")
				last := option.Args[len(option.Args)-1].End()
				if comma := strings.IndexByte(f.between(last, option.Rparen), ','); comma >= 0 {
					f.replaceRange(last+token.Pos(comma), last+token.Pos(comma)+1, "")
				}
				f.replaceRange(option.Rparen, option.Rparen+1, "")
			}
		case name == "WithIdentity" && option.Ellipsis.IsValid():
			made.unknown = made.unknown || made.name == ""
			f.note(option, "WithIdentity: the algorithm of its limits is theirs: limit.WithAlgorithm")
		case name == "WithIdentity" && len(option.Args) > 2:
			made.others = append(made.others, option.Args[2:]...)
		case name == "WithKey":
			made.keyed = true
		}
	}
	for _, i := range removed {
		f.remove(call, i)
	}
	stands := p.rewriteLimits(f, call, from, made)
	if from > 0 {
		return
	}
	if made.name == "" {
		var ok bool
		if made.name, ok = p.defaultName(made); !ok || p.defaults || made.unknown {
			made.name = `"TODO"`
			f.note(call, "the policy's name: what WithName says, or else the text of its limits, "+
				"with the limiter's, and \" by key\" after WithKey; another name has new buckets")
		}
	}
	if stands {
		f.insert(call.Args[0].Pos(), made.name+", ")
	} else {
		f.replace(call.Args[0], made.name)
	}
}

// noteDefaults notes options of a limiter that a policy's name depends on, or that a limiter no longer
// takes.
func (p *pkg) noteDefaults(f *file, call *ast.CallExpr) {
	for _, arg := range call.Args {
		switch _, _, name := p.called(arg); name {
		case "WithLimits", "WithConcurrency":
			f.note(arg, "%s: limits are a policy's, so give them to each", name)
		case "WithLimitFunc":
			f.note(arg, "WithLimitFunc: a policy with a Limit of its own does not use it any more: remove that Limit")
		}
	}
}

// partOfPolicies are options whose default changes what the policies of a limiter count.
var partOfPolicies = []string{"", "WithKey", "WithLimits", "WithName", "WithLimitFunc", "WithAlgorithm",
	"WithConcurrency", "WithIdentity"}

// hasDefaults reports whether the package makes limiters whose defaults are part of policies' names.
func (p *pkg) hasDefaults() (found bool) {
	for _, syntax := range p.files {
		ast.Inspect(syntax, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			if _, _, name := p.called(call); name == "NewLimiter" || name == "NewLocal" {
				found = found || call.Ellipsis.IsValid()
				options := call.Args
				if name == "NewLimiter" && len(options) > 0 {
					options = options[1:] // the client
				}
				for _, arg := range options {
					_, _, option := p.called(arg)
					found = found || slices.Contains(partOfPolicies, option)
				}
			}
			return true
		})
	}
	return found
}

// rewriteLimits gives limits the policy's algorithm. It reports whether the first one stands: not if
// it only took the place of others.
func (p *pkg) rewriteLimits(f *file, call *ast.CallExpr, from int, made policy) (stands bool) {
	if made.algorithm != "" {
		p.setAlgorithm(f, made.others, made.algorithm)
		if made.unknown || p.defaults {
			f.note(call, "limits that are not written here are not counted by %s: use limit.WithAlgorithm", made.algorithm)
		}
	}
	text, known := p.limitText(call.Args[from])
	if from == 0 && (made.function || made.slots && known && strings.HasPrefix(text, "-") && len(made.limits) == 1) {
		if made.function && len(made.limits) > 1 {
			f.note(call, "beside WithLimitFunc there is only InFlight: remove the other limits")
		}
		if made.function && made.algorithm != "" {
			f.note(call, "the function returns limits of the algorithm %s", made.algorithm)
		}
		return false
	}
	if made.algorithm != "" {
		p.setAlgorithm(f, made.limits, made.algorithm)
	}
	return true
}

// setAlgorithm has limits counted by an algorithm, but for calendar quotas, which have none.
func (p *pkg) setAlgorithm(f *file, limits []ast.Expr, algorithm string) {
	for _, limit := range limits {
		if _, _, name := p.called(limit); name == "PerCalendar" {
			continue
		}
		switch limit.(type) {
		case *ast.StarExpr, *ast.UnaryExpr, *ast.BinaryExpr:
			f.insert(limit.Pos(), "(")
			f.insert(limit.End(), ")")
		}
		f.insert(limit.End(), ".WithAlgorithm("+algorithm+")")
	}
}
