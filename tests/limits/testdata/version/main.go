// Command version prints the version that operators see of this program.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/ginlimit/ginlimit"
)

func main() {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		log.Fatal(err)
	}
	policy, err := limiter.Policy("api", ginlimit.PerMinute(1))
	if err != nil {
		log.Fatal(err)
	}
	if _, err = policy.Allow(context.Background(), "k"); err != nil {
		log.Fatal(err)
	}
	all, err := limiter.Policies(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(all[0].Version)
}
