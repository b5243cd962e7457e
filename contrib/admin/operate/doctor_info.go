package operate

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// info is what INFO says, by field.
type info map[string]string

func parseInfo(text string) info {
	all := info{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}

func (i info) number(field string) int64 {
	n, _ := strconv.ParseInt(i[field], 10, 64)
	return n
}

// examineInfo reads what the server says about itself. A field that it does not have is not judged.
func (o *Operator) examineInfo(ctx context.Context, rdb redis.Cmdable, name string, others int, f *findings) {
	text, err := rdb.Info(ctx).Result()
	if err != nil {
		f.failed(ctx, name, "version", Warning, "", err)
		return
	}
	i := parseInfo(text)
	i.version(name, f)
	i.role(name, f)
	if node, ok := rdb.(*redis.Client); ok {
		i.memory(name, others, node.Options().DB, f)
	}
	i.persistence(name, f)
	if most, now := i.number("maxclients"), i.number("connected_clients"); most > 0 {
		state := Fine
		if now*10 > most*9 {
			state = Warning
		}
		f.add(name, "connections", state, fmt.Sprintf("%d of %d", now, most), "raise maxclients, or lower PoolSize")
	}
}

func (i info) version(name string, f *findings) {
	product, version := "Redis", i["redis_version"]
	if v := i["valkey_version"]; v != "" {
		product, version = "Valkey", v
	}
	if version == "" {
		return
	}
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	state, advice := Fine, ""
	switch {
	case major < 6 || major == 6 && minor < 2:
		state, advice = Problem, "upgrade: ginlimit needs 6.2, and is tested with 7.0"
	case major < 7:
		state, advice = Warning, "upgrade to 7.0: with 6.2 a cluster answers each client in a call of its own"
	}
	f.add(name, "version", state, product+" "+version, advice)
}

func (i info) role(name string, f *findings) {
	switch i["role"] {
	case "":
	case "master":
		f.add(name, "role", Fine, "master", "")
	default:
		f.add(name, "role", Problem, "a replica", "connect to the master: a replica decides nothing")
	}
}

func (i info) persistence(name string, f *findings) {
	if i["loading"] == "1" {
		f.add(name, "persistence", Problem, "it loads its data", "wait: decisions go by WithFailureMode")
	}
	for _, field := range []string{"rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"} {
		if i[field] == "err" {
			f.add(name, "persistence", Problem, field+": err", "see Redis' log and the disk: Redis may refuse writes")
		}
	}
	if rdb, aof := i["rdb_last_bgsave_status"], i["aof_enabled"]; rdb != "" {
		kept := "no append-only file"
		if aof == "1" {
			kept = "append-only file"
		}
		f.add(name, "persistence", Fine,
			kept+"; a Redis that loses its keys ends blocks, bans and overrides, and fills buckets", "")
	}
}

// advice says what to do about an error of Redis, by how it begins or what it has.
var advice = []struct{ text, do string }{
	{"NOPERM", "add the command that ACL LOG names to the user: see \"ACL\" in docs/operations.md"},
	{"WRONGPASS", "check the user and the password"},
	{"NOAUTH", "give a password, and the name of an ACL user"},
	{"MOVED", "it is a cluster: connect by a ClusterClient"},
	{"CLUSTERDOWN", "hash slots have no server: see CLUSTER INFO"},
	{"LOADING", "wait until Redis has loaded its data"},
	{"MISCONF", "Redis cannot save: see its log and the disk"},
	{"OOM", "Redis is full: raise maxmemory, or see \"maxmemory\" in docs/operations.md"},
	{"READONLY", "it is a replica: connect to the master"},
	{"BUSY", "a script does not end: SCRIPT KILL"},
	{"WRONGTYPE", "somebody else writes keys of this prefix"},
	{"x509:", "trust the certificate's authority"},
	{"tls:", "check the certificates"},
	{"first record does not look like a TLS handshake", "the server has no TLS there: redis://"},
	{"EOF", "the server closes connections; it may expect TLS: rediss://"},
	{"connection reset", "the server closes connections; it may expect TLS: rediss://"},
	{"all sentinels", "check the addresses of the Sentinels and the master's name"},
	{"connection refused", "check the address, and whether Redis runs"},
	{"no such host", "check the host's name"},
	{"cluster support disabled", "it is no cluster: connect by a Client"},
}

// Advice says what to do about an error of Redis.
func Advice(err error) string {
	for _, a := range advice {
		if strings.Contains(err.Error(), a.text) {
			return a.do
		}
	}
	if Reason(err) == string(ginlimit.ReasonLate) {
		return "no answer in time: check the address, the firewall, whether Redis is frozen, and whether it has TLS there"
	}
	return "see \"Reasons\" in docs/operations.md"
}

// Reason returns what an error of Redis is in a word, as metrics have it; one that says no more than that the client
// failed, by what it is known by.
func Reason(err error) string {
	word := redisstore.Word(err)
	for _, a := range advice {
		if word == string(ginlimit.ReasonClient) && strings.Contains(err.Error(), a.text) {
			return strings.TrimSuffix(a.text, ":")
		}
	}
	return word
}
