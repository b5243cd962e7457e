// Command ginlimit-migrate rewrites a program that uses ginlimit 0.1 for 0.2.
//
//	go run github.com/ginlimit/ginlimit/cmd/ginlimit-migrate@v0.2.0 ./...
//
// Run it while the program still uses 0.1, as it needs the types of a program that compiles. Then
// upgrade the module, and change by hand what it printed. It keeps the names under which clients are
// counted, so their buckets stay.
//
// With -n it changes no file, and prints what it would change. With -tags it also reads files that
// need these build tags.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
)

func main() {
	log.SetFlags(0)
	dry := flag.Bool("n", false, "change no file")
	tags := flag.String("tags", "", "build tags, separated by commas")
	flag.Parse()
	patterns := flag.Args()
	if len(patterns) == 0 {
		patterns = []string{"."}
	}
	packages, err := load(*tags, patterns)
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range packages {
		for _, f := range p.rewrite() {
			if f.changed() {
				fmt.Println(f.name)
				if !*dry {
					if err := f.write(); err != nil {
						log.Fatal(err)
					}
				}
			}
			for _, note := range f.notes {
				fmt.Fprintln(os.Stderr, note)
			}
		}
	}
}
