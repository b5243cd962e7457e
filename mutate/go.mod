module github.com/ginlimit/ginlimit/mutate

go 1.25.0
