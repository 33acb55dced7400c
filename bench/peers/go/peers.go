// Locks of Go's package clientv3/concurrency, as a row of the benchmark. ../README.md has the job and the result.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/ioutil"
	"math/rand"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
	"go.etcd.io/etcd/version"
)

const (
	// How long the tasks may take to end: after the time of the run, or in all if each acquires once.
	end, onceEnd = 15 * time.Second, 60 * time.Second
	// Until this, all tasks must have been seen in the queue.
	queued = 30 * time.Second

	missing = 3
	holder  = -1
)

type job struct {
	Row     string   `json:"row"`
	Servers []string `json:"servers"`
	Clients int      `json:"clients"`
	Tasks   int      `json:"tasks"`
	Names   string   `json:"names"`
	Name    string   `json:"name"`
	HoldUs  int64    `json:"hold_us"`
	PauseUs [2]int64 `json:"pause_us"`
	TTLMs   int64    `json:"ttl_ms"`
	Millis  int64    `json:"millis"`
	Once    bool     `json:"once"`
}

// Counts of microseconds, rounded to three digits.
type histogram map[int64]int64

func (h histogram) add(time time.Duration) {
	value, unit := time.Microseconds(), int64(1)
	for value/unit >= 1000 {
		unit *= 10
	}
	h[(value+unit/2)/unit*unit]++
}

// What one task has measured.
type tally struct {
	acquire, pair, handoff histogram
	grants, toSelf         int64
}

func newTally() *tally {
	return &tally{acquire: histogram{}, pair: histogram{}, handoff: histogram{}}
}

// The lock that all tasks want, as this process sees it.
type shared struct {
	mutex              sync.Mutex
	inside, violations int
	isReleased         bool
	last               int
	when               time.Time
}

func (s *shared) entered(task int, now time.Time, tally *tally) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.inside > 0 {
		s.violations++
	}
	s.inside++
	if s.isReleased && s.last == task {
		tally.toSelf++
	} else if s.isReleased {
		tally.handoff.add(now.Sub(s.when))
	}
}

func (s *shared) leaves(task int, now time.Time) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.inside--
	s.isReleased, s.last, s.when = true, task, now
}

type run struct {
	job
	shared shared
	// Zero before the start.
	started atomicTime
	called  int64
	gone    chan struct{}
}

type atomicTime struct{ value atomic.Value }

func (t *atomicTime) set(now time.Time) { t.value.Store(now) }

func (t *atomicTime) after(other time.Time) time.Time {
	if started, isSet := t.value.Load().(time.Time); isSet && started.After(other) {
		return started
	}
	return other
}

func connect(j job) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: j.Servers, DialTimeout: 10 * time.Second})
	check(err)
	return client
}

// Returns a lock with a session of its own: one session is one owner.
func (j job) mutex(client *clientv3.Client, name string) *concurrency.Mutex {
	seconds := int((j.TTLMs + 999) / 1000)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(seconds))
	check(err)
	return concurrency.NewMutex(session, name)
}

func (r *run) task(number int, mutex *concurrency.Mutex, tally *tally) {
	if r.Once {
		r.pair(number, mutex, tally)
		return
	}
	<-r.gone
	end := r.started.after(time.Time{}).Add(time.Duration(r.Millis) * time.Millisecond)
	for time.Now().Before(end) {
		r.pair(number, mutex, tally)
		if low, high := r.PauseUs[0], r.PauseUs[1]; high > 0 {
			time.Sleep(time.Duration(low+rand.Int63n(high-low+1)) * time.Microsecond)
		}
	}
}

// Acquires the lock, holds it and releases it.
func (r *run) pair(number int, mutex *concurrency.Mutex, tally *tally) {
	isShared := r.Names == "shared"
	called := time.Now()
	atomic.AddInt64(&r.called, 1)
	check(mutex.Lock(context.Background()))
	granted := time.Now()
	// With `once`, the time before the start is not the peer's.
	acquire := granted.Sub(r.started.after(called))
	if isShared {
		r.shared.entered(number, granted, tally)
	}
	if r.HoldUs > 0 {
		time.Sleep(time.Duration(r.HoldUs) * time.Microsecond)
	}
	releases := time.Now()
	if isShared {
		r.shared.leaves(number, releases)
	}
	check(mutex.Unlock(context.Background()))
	tally.acquire.add(acquire)
	tally.pair.add(acquire + time.Since(releases))
	tally.grants++
}

// Waits until all tasks are in the queue.
func (r *run) allWait(client *clientv3.Client, tasks int) {
	bound := time.Now().Add(queued)
	for {
		reply, err := client.Get(context.Background(), r.Name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		check(err)
		if reply.Count == int64(tasks+1) && atomic.LoadInt64(&r.called) == int64(tasks) {
			return
		}
		if time.Now().After(bound) {
			fail(1, "%d of %d are in the queue", reply.Count, tasks+1)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Connects the clients, and makes each acquire and release a lock.
func (r *run) connect() []*clientv3.Client {
	count := r.Clients
	if r.Once {
		count++
	}
	clients := make([]*clientv3.Client, count)
	for number := range clients {
		clients[number] = connect(r.job)
		mutex := r.mutex(clients[number], fmt.Sprintf("%s-warm-%d", r.Name, number))
		check(mutex.Lock(context.Background()))
		check(mutex.Unlock(context.Background()))
	}
	return clients
}

// Runs the job, and prints its result.
func (r *run) measure() {
	clients := r.connect()
	var first *concurrency.Mutex
	if r.Once {
		first = r.mutex(clients[r.Clients], r.Name)
		check(first.Lock(context.Background()))
		r.shared.entered(holder, time.Now(), newTally())
	}
	tallies := make([]*tally, r.Clients*r.Tasks)
	var ended sync.WaitGroup
	for number := range tallies {
		name := r.Name
		if r.Names == "own" {
			name = fmt.Sprintf("%s-%d", r.Name, number)
		}
		tallies[number] = newTally()
		mutex := r.mutex(clients[number%r.Clients], name)
		ended.Add(1)
		go func(number int) {
			defer ended.Done()
			r.task(number, mutex, tallies[number])
		}(number)
	}
	if r.Once {
		r.allWait(clients[0], len(tallies))
	}
	fmt.Println("ready")
	waitForGo()
	cpu, started := ownCPU(), time.Now()
	r.started.set(started)
	close(r.gone)
	timer := r.bound()
	if r.Once {
		r.shared.leaves(holder, time.Now())
		check(first.Unlock(context.Background()))
	}
	ended.Wait()
	elapsed, used := time.Since(started), ownCPU()-cpu
	timer.Stop()
	check(json.NewEncoder(os.Stdout).Encode(r.report(tallies, elapsed, used)))
	// The benchmark reads the servers' counters before it ends the input.
	_, err := io.Copy(ioutil.Discard, os.Stdin)
	check(err)
	for _, client := range clients {
		check(client.Close())
	}
}

// Ends the process if tasks do not end.
func (r *run) bound() *time.Timer {
	bound := onceEnd
	if !r.Once {
		bound = end + time.Duration(r.Millis)*time.Millisecond
	}
	return time.AfterFunc(bound, func() { fail(1, "tasks still wait for the lock %v after the start", bound) })
}

func (r *run) report(tallies []*tally, elapsed, cpu time.Duration) map[string]interface{} {
	acquire, pair, handoff, shares := histogram{}, histogram{}, histogram{}, []int64{}
	var operations, toSelf int64
	for _, tally := range tallies {
		acquire.merge(tally.acquire)
		pair.merge(tally.pair)
		handoff.merge(tally.handoff)
		shares = append(shares, tally.grants)
		operations += tally.grants
		toSelf += tally.toSelf
	}
	return map[string]interface{}{
		"operations": operations, "elapsed_us": elapsed.Microseconds(), "cpu_us": cpu.Microseconds(),
		"acquire_us": acquire.pairs(), "pair_us": pair.pairs(), "handoff_us": handoff.pairs(),
		"shares": shares, "to_self": toSelf, "violations": r.shared.violations,
		"version": "clientv3/concurrency " + version.Version,
	}
}

func (h histogram) merge(other histogram) {
	for value, count := range other {
		h[value] += count
	}
}

func (h histogram) pairs() [][2]int64 {
	pairs := [][2]int64{}
	for value, count := range h {
		pairs = append(pairs, [2]int64{value, count})
	}
	sort.Slice(pairs, func(left, right int) bool { return pairs[left][0] < pairs[right][0] })
	return pairs
}

func waitForGo() {
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if line != "go\n" {
		fail(1, "expected `go`")
	}
}

func ownCPU() time.Duration {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func check(err error) {
	if err != nil {
		fail(1, "%v", err)
	}
}

func fail(code int, format string, values ...interface{}) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
	os.Exit(code)
}

func main() {
	if len(os.Args) < 2 {
		fail(1, "the first argument must be a job")
	}
	r := run{gone: make(chan struct{})}
	check(json.Unmarshal([]byte(os.Args[1]), &r.job))
	if r.Row != "go-concurrency" {
		fail(missing, "no row %s", r.Row)
	}
	r.measure()
}
