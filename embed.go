package ginlimit

import (
	_ "embed"

	"github.com/ginlimit/ginlimit/internal/wire"
)

//go:embed script.lua
var tokenScript string

// scripts are what all limiters of this process send. Each is composed when it is used first.
var scripts = wire.New(tokenScript)
