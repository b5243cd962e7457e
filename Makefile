# The steps of .ci/run, one by one. `bash .ci/run` decides what lands.

BIN ?= $(CURDIR)/bin
FUZZTIME ?= 5s
MODULES = $(shell git ls-files '*go.mod' | xargs -n 1 dirname)

.PHONY: help test race fuzz bench readme lint ci

help: ## print the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile

test: ## the tests of every module
	@for module in $(MODULES); do (cd $$module && go test ./...) || exit 1; done

race: ## the same with the race detector, in another order each time
	@for module in $(MODULES); do (cd $$module && go test -race -shuffle=on -timeout 30m ./...) || exit 1; done

fuzz: ## every fuzz target for FUZZTIME
	@for target in $$(go test -list '^Fuzz' . | grep '^Fuzz'); do \
		go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) . || exit 1; done

bench: ## the table and the plot of the README, against other libraries
	cd bench && go run ./table

readme: ## write the code blocks of the README from the Examples
	go test -run TestReadmeBlocks . -readme

lint: ## formatting, go.mod, vet and staticcheck of every module
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt: $$unformatted"; exit 1; }
	GOBIN=$(BIN) go install honnef.co/go/tools/cmd/staticcheck@v0.8.2
	@for module in $(MODULES); do echo "module $$module"; \
		(cd $$module && go mod tidy -diff && go vet ./... && $(BIN)/staticcheck ./...) || exit 1; done

ci: ## all that decides what lands
	bash .ci/run
