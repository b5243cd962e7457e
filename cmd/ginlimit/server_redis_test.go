package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// stateOf returns the worst state of a check in the doctor's findings, and what to do.
func stateOf(all []operate.Finding, check string) (state, do string) {
	for _, f := range all { // the worst first
		if f.Check == check {
			return f.State, f.Advice
		}
	}
	return "", ""
}

// examined returns what the doctor finds, with an exit code.
func (r *runner) examined(code int, args ...string) []operate.Finding {
	r.t.Helper()
	got := r.run(append([]string{"doctor", "--json"}, args...)...)
	require.Equal(r.t, code, got.code, "%s%s", got.errs, got.out)
	var all []operate.Finding
	require.NoError(r.t, jsonOf(got.out, &all))
	return all
}

func TestDoctorOnAHealthyServer(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t, "--maxmemory", "100mb", "--maxmemory-policy", "noeviction")
	r := newRunner(t, "redis://"+addr)
	state, do := stateOf(r.examined(exitOK), "policies")
	require.Equal(t, operate.Warning, state)
	require.Contains(t, do, "check --prefix")
	rdb := testkit.Connect(t, addr)
	keys := testkit.Must(rdb.Keys(t.Context(), "*").Result())
	for _, key := range keys {
		require.Contains(t, key, "ginlimit doctor")
	}
	policies := application(t, rdb)
	for _, f := range r.examined(exitOK) {
		if f.Check != "connection" && f.Check != "clock" { // which a busy machine may be warned of
			require.Equal(t, operate.Fine, f.State, f)
			require.Empty(t, f.Advice)
		}
	}
	require.Contains(t, r.ok("doctor"), "sliding-window: scripts run")

	take(t, testkit.Must(policies["login"].With(ginlimit.WithFloor(1))), "203.0.113.7")
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		_, do := stateOf(r.examined(exitOK), "policies")
		return strings.Contains(do, "wait for the rollout to end")
	}))
	require.NoError(t, rdb.HSet(t.Context(), "ginlimit:{overrides}", "login|a", `{"v":2}`).Err())
	state, _ = stateOf(r.examined(exitFailed), "overrides")
	require.Equal(t, operate.Problem, state)
}

func TestDoctorOnASickServer(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t, "--maxmemory-policy", "allkeys-lru", "--maxmemory", "1gb")
	rdb := testkit.Connect(t, addr)
	r := newRunner(t, "redis://"+addr)
	require.NoError(t, rdb.Set(t.Context(), "others", 7, 0).Err())
	state, _ := stateOf(r.examined(exitOK, "--prefix", ""), "keys")
	require.Equal(t, operate.Fine, state, "without a prefix others have keys, too")
	require.NoError(t, rdb.Set(t.Context(), "ginlimit:{login|a}:h", 7, 0).Err())
	all := r.examined(exitFailed)
	require.Equal(t, operate.Problem, all[0].State, "the worst first")
	state, do := stateOf(all, "keys")
	require.Equal(t, operate.Problem, state)
	require.Contains(t, do, "somebody else writes keys of this prefix")
	state, do = stateOf(all, "memory")
	require.Equal(t, operate.Warning, state)
	require.Contains(t, do, "evicted clients start with a full bucket: set noeviction")
	require.Contains(t, r.run("doctor").out,
		"random keys of the prefix have no expiry, such as ginlimit:{login|a}:h") // the run before has left some that have

	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1mb").Err())
	all = r.examined(exitFailed)
	state, _ = stateOf(all, "memory")
	require.Equal(t, operate.Problem, state)
	state, do = stateOf(all, "decisions")
	require.Equal(t, operate.Problem, state)
	require.Contains(t, do, "Redis is full")
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	replica := testkit.StartRedis(t, "--replicaof", host+" "+port)
	all = newRunner(t, "redis://"+replica).examined(exitFailed)
	state, do = stateOf(all, "role")
	require.Equal(t, operate.Problem, state)
	require.Contains(t, do, "connect to the master")
}

// TestDoctorOnVolatileTTL: it evicts what lives shortest, so buckets are safe only beside buckets like them.
func TestDoctorOnVolatileTTL(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t, "--maxmemory-policy", "volatile-ttl", "--maxmemory", "1gb")
	rdb := testkit.Connect(t, addr)
	limiter := testkit.NewOperated(t, rdb)
	serve := func(name string, opts ...ginlimit.PolicyOption) {
		p := testkit.NewPolicy(t, limiter, name, opts...)
		require.True(t, testkit.BecomesTrue(nil, func() bool {
			take(t, p, "someone")
			all, err := limiter.Policies(t.Context())
			return err == nil && slices.ContainsFunc(all, func(p ginlimit.PolicyInfo) bool { return p.Name == name })
		}))
	}
	r := newRunner(t, "redis://"+addr)
	found := func() operate.Finding {
		t.Helper()
		all := r.examined(exitOK)
		return all[slices.IndexFunc(all, func(f operate.Finding) bool { return f.Check == "memory" })]
	}
	serve("api", ginlimit.PerMinute(60))
	serve("search", ginlimit.PerMinute(90))
	require.Equal(t, operate.Fine, found().State, "only buckets of about the same time")
	require.NotEmpty(t, found().Found)

	require.NoError(t, rdb.Set(t.Context(), "session:1", 7, 2*time.Hour).Err())
	require.Equal(t, operate.Warning, found().State)
	require.Contains(t, found().Found, "of others")
	require.Contains(t, found().Advice, "buckets are evicted before keys that live longer")
	require.NoError(t, rdb.Del(t.Context(), "session:1").Err())
	require.Equal(t, operate.Fine, found().State)

	other := redis.NewClient(&redis.Options{Addr: addr, DB: 3})
	t.Cleanup(func() { _ = other.Close() })
	require.NoError(t, other.Set(t.Context(), "session:1", 7, 2*time.Hour).Err())
	require.Equal(t, operate.Warning, found().State)
	require.Contains(t, found().Found, "1 keys in other databases")
	require.NoError(t, other.FlushDB(t.Context()).Err())
	require.Equal(t, operate.Fine, found().State)

	serve("login", ginlimit.Per(5, 15*time.Minute))
	require.Equal(t, operate.Warning, found().State)
	require.Contains(t, found().Found, "a token of policy search takes 667ms, of login 3m0s")
	serve("report", ginlimit.PerHour(5).WithAlgorithm(ginlimit.FixedWindow))
	require.Contains(t, found().Found, "policy report has other keys than token buckets")
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	require.Equal(t, operate.Fine, found().State)
}

// TestUserWithFewRights: the doctor says what is missing.
func TestUserWithFewRights(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	testkit.Restrict(t, addr, "TokenBucket")
	r := newRunner(t, "redis://"+addr)
	r.env["REDIS_PASSWORD"] = "wrong"
	_, do := stateOf(r.examined(exitFailed, "--username", "app"), "connection")
	require.Equal(t, "check the user and the password", do)
	r.env["REDIS_PASSWORD"] = "secret"
	all := r.examined(exitFailed, "--username", "app")
	for _, check := range []string{"version", "keys"} {
		state, do := stateOf(all, check)
		require.Equal(t, operate.Warning, state)
		require.Contains(t, do, "ACL LOG")
	}
	found := map[string]string{}
	for _, f := range all {
		if f.Check == "decisions" {
			algorithm, _, _ := strings.Cut(f.Found, ":")
			found[algorithm] = f.State
		}
	}
	require.Equal(t, map[string]string{"token-bucket": operate.Fine, "fixed-window": operate.Problem, "sliding-window": operate.Problem}, found)
}

// TestPruneOfThousands: more end than one call changes, and there is room only when some have ended.
func TestPruneOfThousands(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	_, r := servingOn(t, rdb, map[string][]ginlimit.PolicyOption{"api": {ginlimit.PerHour(9)}})
	l := testkit.NewOperated(t, rdb, ginlimit.WithoutOverrides())
	for i := range 10 {
		var all []ginlimit.Override
		for j := range 1000 {
			all = append(all, ginlimit.Override{Policy: "api", Client: fmt.Sprint(i, "/", j),
				Limits: []ginlimit.Limit{ginlimit.PerHour(5)}, Until: time.Now().Add(time.Hour)})
		}
		require.NoError(t, l.OverrideAll(t.Context(), all...))
	}
	r.in = "- {policy: api, client: new, limits: 9/h, for: 2h}"
	require.Equal(t, 10_001, strings.Count(r.run("apply", "-", "--prune", "--dry-run").out, "\n"))
	require.Equal(t, "ginlimit: changed 10001 overrides\n", r.run("apply", "-", "--prune", "-y").errs)
	require.Len(t, read[[]operate.Written](r, "overrides"), 1)
}

// TestUnknownCommandsShowNoPassword: Redis' error for AUTH has its arguments, as behind a proxy without it.
func TestUnknownCommandsShowNoPassword(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t, "--rename-command", "AUTH", "none", "--rename-command", "HELLO", "nothing")
	r := newRunner(t, "redis://app:sesame@"+addr)
	r.fails(exitFailed, "unknown command 'auth'", "policies")
	require.NotContains(t, r.run("policies").errs, "sesame")
	require.NotContains(t, r.run("doctor").out, "sesame")
}

func TestCluster(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	rdb := testkit.ConnectCluster(t, addrs...)
	policies := application(t, rdb)
	take(t, policies["login"], "203.0.113.7")
	for _, r := range []*runner{newRunner(t, strings.Join(addrs, ",")), newRunner(t, "redis://"+addrs[0])} {
		require.Equal(t, 4, read[shown](r, "status", "login", "203.0.113.7", "--cluster").Limits[0].Remaining)
		servers := map[string]bool{}
		for _, f := range r.examined(exitOK, "--cluster") {
			servers[f.Server] = true
		}
		require.Len(t, servers, 4, "three servers, and all together")
	}
	take(t, policies["ban"], "key")
	take(t, policies["ban"], "key")
	several := newRunner(t, strings.Join(addrs, ","))
	require.True(t, testkit.BecomesTrue(nil, func() bool { return len(read[[]ranked](several, "top", "ban")) == 1 }))
	alone := newRunner(t, "redis://"+addrs[0])
	_, do := stateOf(alone.examined(exitFailed), "decisions")
	require.Equal(t, "it is a cluster: give --cluster", do)
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(config, []byte("sentinel monitor main 127.0.0.1 "+port+" 1\n"), 0o600))
	sentinel := testkit.StartRedis(t, config, "--sentinel")
	take(t, application(t, testkit.Connect(t, addr))["login"], "203.0.113.7")
	r := newRunner(t, "redis://"+sentinel)
	require.Equal(t, 4, read[shown](r, "status", "login", "203.0.113.7", "--sentinel", "main").Limits[0].Remaining)
	_, do := stateOf(r.examined(exitFailed, "--sentinel", "other"), "connection")
	require.Equal(t, "check the addresses of the Sentinels and --sentinel", do)
}

// certificate writes a certificate for 127.0.0.1 and its key, and returns their files.
func certificate(t *testing.T) (cert, key string) {
	private := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	made := testkit.Must(x509.CreateCertificate(rand.Reader, template, template, private.Public(), private))
	bytes := testkit.Must(x509.MarshalECPrivateKey(private))
	dir := t.TempDir()
	write := func(name, kind string, bytes []byte) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return name
	}
	return write("cert", "CERTIFICATE", made), write("key", "EC PRIVATE KEY", bytes)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	tls := testkit.FreePort(t)
	addr := testkit.StartRedis(t, "--tls-port", tls, "--tls-cert-file", cert, "--tls-key-file", key,
		"--tls-ca-cert-file", cert)
	r := newRunner(t, "rediss://127.0.0.1:"+tls)
	_, do := stateOf(r.examined(exitFailed), "connection")
	require.Equal(t, "trust the certificate's authority by --ca", do)
	require.Contains(t, r.ok("doctor", "--ca", cert, "--cert", cert, "--key", key), "scripts run")
	all := r.examined(exitFailed, "--ca", cert)
	require.Equal(t, "connection", all[0].Check, "the server wants a certificate")
	_, do = stateOf(newRunner(t, "rediss://"+addr).examined(exitFailed, "--timeout", "300ms"), "connection")
	require.Contains(t, do, "whether it has TLS there")
	_, do = stateOf(newRunner(t, "redis://127.0.0.1:"+tls).examined(exitFailed), "connection")
	require.Equal(t, "the server closes connections; it may expect TLS: rediss://", do)
}
