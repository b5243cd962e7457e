//go:build !integration

package testkit

func servers() map[string]startEngine { return nil }
