package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// fault is an error whose text comes from this package, so it may be logged.
type fault string

func (f fault) Error() string { return string(f) }

const (
	errNoConn     = fault("the Dialer returned no connection")
	errHangsUp    = fault("the server closes new connections; it may expect TLS")
	errWantsTLS   = fault("the server expects TLS")
	errNoRedis    = fault("the server does not speak Redis' protocol")
	errShardsDown = fault("all shards of the ring are down")
)

// isSpecific reports whether an error names a cause: a reply of Redis, a network error or a closed
// client. A timeout does not.
func isSpecific(err error) bool {
	var (
		reply   redis.Error
		network net.Error
		own     fault
	)
	return !dispatch.IsLate(err) &&
		(errors.Is(err, redis.ErrClosed) || errors.As(err, &own) || errors.As(err, &reply) || errors.As(err, &network))
}

// knownReplies explain replies whose code says too little, by their prefix.
var knownReplies = []struct{ prefix, words string }{
	{"ERR DB index is out of range", "ERR: the database number is out of range"},
	{"ERR invalid DB index", "ERR: the database number is out of range"},
	{"ERR SELECT is not allowed in cluster mode", "ERR: a cluster has no database but number 0"},
	{"ERR max number of clients reached", "ERR: there are as many clients as maxclients allows"},
}

// reason returns what may be logged about an error of Redis or the network. It contains no client's
// key and no text that another party wrapped around the error.
func reason(err error) string {
	var (
		own     fault
		host    *net.DNSError
		address *net.AddrError
		reply   redis.Error
		network *net.OpError
		cert    *tls.CertificateVerificationError
		record  tls.RecordHeaderError
		alert   tls.AlertError
		number  syscall.Errno
	)
	switch {
	case errors.As(err, &own):
		return own.Error()
	case errors.As(err, &host):
		lookup := *host
		lookup.Name = withoutPassword(host.Name)
		return lookup.Error()
	case errors.Is(err, redis.ErrClosed):
		return "the client is closed"
	case errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted):
		return "no connection of the client was free"
	case dispatch.IsLate(err):
		return "late"
	case errors.Is(err, redis.Nil):
		return "a nil reply"
	case errors.As(err, &reply):
		for _, known := range knownReplies {
			if strings.HasPrefix(reply.Error(), known.prefix) {
				return known.words
			}
		}
		return replyCode(reply)
	case errors.As(err, &address):
		return (&net.AddrError{Err: address.Err, Addr: withoutPassword(address.Addr)}).Error()
	case errors.As(err, &network):
		return network.Error()
	case errors.As(err, &cert):
		return cert.Error()
	case errors.As(err, &record):
		return record.Error()
	case errors.As(err, &alert):
		return alert.Error()
	case errors.As(err, &number):
		return number.Error()
	}
	for _, known := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, context.Canceled, goroutine.ErrPanic,
		goroutine.ErrGoexit} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return fmt.Sprintf("an error of the client of type %T", err)
}

// withoutPassword returns an address without a URL's user and password. go-redis expects none in an
// address, but applications pass them. An address that begins with @ is an abstract Unix socket.
func withoutPassword(addr string) string {
	if at := strings.LastIndexByte(addr, '@'); at > 0 {
		return addr[at+1:]
	}
	return addr
}

// replyWords are the reply codes that [Word] returns unchanged.
var replyWords = []string{"ASK", "BUSY", "CLUSTERDOWN", "CROSSSLOT", "ERR", "LOADING", "MASTERDOWN", "MISCONF", "MOVED",
	"NOAUTH", "NOPERM", "NOREPLICAS",
	"NOSCRIPT", "OOM", "READONLY", "TRYAGAIN", "WRONGPASS", "WRONGTYPE"}

// Word returns the kind of an error of Redis or the network, for metrics: a code of replyWords, or
// one of the words below.
func Word(err error) string {
	var (
		host   *net.DNSError
		reply  redis.Error
		cert   *tls.CertificateVerificationError
		record tls.RecordHeaderError
		alert  tls.AlertError
	)
	switch {
	case errors.As(err, &host):
		return "unknown_host"
	case errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted):
		return "pool"
	case dispatch.IsLate(err):
		return "late"
	case errors.As(err, &reply):
		if code := replyCode(reply); slices.Contains(replyWords, code) {
			return code
		}
		return "reply"
	case errors.As(err, &cert) || errors.As(err, &record) || errors.As(err, &alert) || errors.Is(err, errWantsTLS):
		return "tls"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection_refused"
	case errors.As(err, new(*net.OpError)) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, errHangsUp):
		return "network"
	}
	return "client"
}

// IsDenied reports whether an error is that the user lacks a right. Of a command in a script, Redis before 7.2 and
// since then says it in other words after ERR.
func IsDenied(err error) bool {
	if !IsErrorReply(err) {
		return false
	}
	text := err.Error()
	return strings.HasPrefix(text, "NOPERM") || strings.Contains(text, "The user executing the script can't") ||
		strings.Contains(text, "ACL failure in script")
}

// unauthenticated begins the answer to a large command of a client without a password, if there must
// be one; ERR precedes it.
const unauthenticated = "Protocol error: unauthenticated"

// wrapped matches what Redis before 7.0, KeyDB and Dragonfly write before the error of a command that a script
// calls, such as "ERR Error running script (call to f_8f): @user_script:1: @user_script: 1: -OOM …".
var wrapped = regexp.MustCompile(`^(?:ERR )?Error running script \(call to [0-9a-z_]*\): ` +
	`(?:@?user_script: ?[0-9]+: )*-?([A-Z]{2,}) `)

// replyCode returns the code of an error reply: its first word, in capitals, or the code of the command that failed
// in a script.
func replyCode(reply redis.Error) string {
	if inner := wrapped.FindStringSubmatch(reply.Error()); inner != nil {
		return inner[1]
	}
	if redis.HasErrorPrefix(reply, unauthenticated) {
		return "NOAUTH"
	}
	code, _, _ := strings.Cut(reply.Error(), " ")
	if code == "" || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return fmt.Sprintf("%T", reply)
	}
	return code
}
