module github.com/ginlimit/ginlimit/mutate

go 1.26.0
