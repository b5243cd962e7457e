# `bash .ci/run` decides what lands; these are its steps, one by one, and those of `make nightly`.

SHELL = bash
.SHELLFLAGS = -o pipefail -c
BIN ?= $(CURDIR)/bin
FUZZTIME ?= 5s
FUZZBUILD ?= -fuzz=Fuzz
MODULES = $(shell git ls-files '*go.mod' | xargs -n 1 dirname)
SEEDS ?= 10000
FIRST ?= 1
FILES ?= .
RUNS ?= 20
SKIP ?=
SHUFFLE ?= on
RACED ?=
TAGS ?= integration
PARTS ?=
LINTED ?= $(MODULES)

FAIR = go test -tags integration ./tests/fair -count=1 -timeout 0 -v

.PHONY: help test busy integration simulate fair mutate fuzz bench lint api ci nightly

help: ## print the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile

test: ## the tests that need nothing but Go
	go test ./...

busy: ## RUNS runs of these tests beside four busy loops, each also with the race detector on one core
	@loops=; for i in 1 2 3 4; do sh -c 'while :; do :; done' & loops="$$loops $$!"; done; trap "kill $$loops" EXIT; \
	for run in $$(seq $(RUNS)); do echo "run $$run"; go test -count=1 -timeout 30m ./... && GOMAXPROCS=1 go test -race -count=1 -timeout 30m ./... || exit 1; done

# What has goroutines, but for those that simulate several processes. Two modules of example/ and tests/integration have
# parts of make nightly.
RACY = $(shell go list ./... | grep -v -E '/tests/(simulation|fair|model)$$|/internal(/(bucket|calendar|gintrust|httpfields|rules|wire))?$$') \
	$(patsubst %,./%/...,$(filter-out . tests/integration example/browser example/postgres,$(MODULES)))

# One workspace has all modules, so that what they share is compiled and checked once.
WORKSPACE = { [ -n "$$GOWORK" ] || .ci/workspace $(BIN)/pinned; } && export GOWORK=$${GOWORK:-$(BIN)/pinned/go.work}

integration: ## the tests that need redis-server or have goroutines, with the race detector
	@$(WORKSPACE) && go test -race -shuffle=$(SHUFFLE) -parallel 6 -timeout 30m -tags '$(TAGS)' -skip '$(SKIP)' $(or $(RACED),$(RACY))

# A seed of slots takes three times as long as one of processes.
simulate: ## SEEDS simulations of the dispatcher, and of processes, network and Redis, and a third of slots, from seed FIRST on
	go test ./internal/dispatch -run '^TestWhateverTheServerDoes$$' -timeout 0 -seeds $(SEEDS) -seed $(FIRST)
	go test ./tests/simulation -run '^TestSimulation$$' -timeout 0 -seeds $(SEEDS) -seed $(FIRST)
	go test ./tests/simulation -run '^TestSlotSimulation$$' -timeout 0 -seeds $$(( ($(SEEDS) + 2) / 3 )) -seed $(FIRST)

# A seed of processes takes ten times as long as one of tenants.
fair: ## SEEDS simulations of tenants that share a limit from seed FIRST on, and a tenth of processes; two processes on a Redis; a table, and the plot of docs/fair.md
	$(FAIR) -run '^TestSimulation$$' -seeds $(SEEDS) -seed $(FIRST) | grep -v -e '^=== ' -e '^ *--- PASS'
	$(FAIR) -run '^TestProcessSimulation$$' -seeds $$(( ($(SEEDS) + 9) / 10 )) -seed $(FIRST) | grep -v -e '^=== ' -e '^ *--- PASS'
	NIGHTLY=1 $(FAIR) -run 'TwoProcesses|OnRedis' | grep -v -e '^=== '
	$(FAIR) -run '^TestTable$$|^TestPlot$$' -write ../../docs/fair.svg | grep -v -e '^=== '

mutate: ## break the code in one place at a time, in the files that match FILES, and say what no test sees
	cd tests/mutate && go run . -root ../.. -only '$(FILES)'

fuzz: ## every fuzz target for FUZZTIME
	@targets=$$(git grep -o '^func Fuzz[A-Za-z]*' -- '*_test.go') || exit 1; mkdir -p $(BIN); built=; \
	echo "$$targets" | sed 's|[^/]*:func |. |' | while read -r package target; do \
		[ "$$package" = "$$built" ] || (cd "$$package" && go test -c $(FUZZBUILD) -o $(BIN)/fuzz.test .) || exit 1; built=$$package; \
		echo "$$target"; (cd "$$package" && $(BIN)/fuzz.test -test.run '^$$' -test.fuzz "^$$target\$$" -test.fuzztime $(FUZZTIME) \
			-test.fuzzcachedir $(BIN)/fuzz) || exit 1; done

bench: ## the table of bench/README.md and its plot, against other libraries
	cd bench && go run ./table

lint: ## formatting and go.mod of every module, vet and staticcheck of those in LINTED, or of all
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt: $$unformatted"; exit 1; }
	GOFLAGS= GOBIN=$(BIN) go install honnef.co/go/tools/cmd/staticcheck@v0.8.2
	@for module in $(MODULES); do (cd $$module && go mod tidy -diff) || { echo "module $$module"; exit 1; }; done
	@$(WORKSPACE) && go vet -tags '$(TAGS)' $(LINTED:%=./%/...) && $(BIN)/staticcheck -tags '$(TAGS)' $(LINTED:%=./%/...)

api: ## what is incompatible with the last release stands in CHANGELOG
	BIN=$(BIN) .ci/api

ci: ## all that decides what lands
	bash .ci/run

nightly: ## what needs the newest of others, a quiet machine, more programs or more time: all parts, or PARTS
	bash .ci/nightly $(PARTS)
