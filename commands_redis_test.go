//go:build integration

package ginlimit_test
