// One session of etcd's Go package concurrency, driven by lines on its standard input, for the tests of elections.
//
//	go build election.go && ./election HOST:PORT NAME
//
// Input: "campaign VALUE", "proclaim VALUE", "resign", "leader", "observe". Each is answered by one line; after
// "observe", each leader that is seen by then or later is a line "seen REVISION VALUE".
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

func check(err error) {
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}})
	check(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	check(err)
	election := concurrency.NewElection(session, os.Args[2])
	ctx := context.Background()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.SplitN(lines.Text(), " ", 2)
		value := words[len(words)-1]
		switch words[0] {
		case "campaign":
			check(election.Campaign(ctx, value))
			fmt.Println("elected", election.Rev())
		case "proclaim":
			check(election.Proclaim(ctx, value))
			fmt.Println("proclaimed")
		case "resign":
			check(election.Resign(ctx))
			fmt.Println("resigned")
		case "leader":
			leader, err := election.Leader(ctx)
			check(err)
			fmt.Println("leader", leader.Kvs[0].CreateRevision, string(leader.Kvs[0].Value))
		case "observe":
			go func() {
				for leader := range election.Observe(ctx) {
					fmt.Println("seen", leader.Kvs[0].CreateRevision, string(leader.Kvs[0].Value))
				}
			}()
		}
	}
	check(session.Close())
}
