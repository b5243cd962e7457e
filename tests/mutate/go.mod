module github.com/ginlimit/ginlimit/tests/mutate

go 1.25.0
