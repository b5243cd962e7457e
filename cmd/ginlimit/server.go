package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"
)

const defaultURL = "redis://127.0.0.1:6379"

// server is where Redis is and how to get in.
type server struct {
	url      string
	cluster  bool
	sentinel string // the master's name
	username string
	ca       string
	cert     string
	key      string
}

func (s *server) flags(flags *pflag.FlagSet) {
	flags.StringVar(&s.url, "redis", "", "URL, or HOST:PORT,HOST:PORT of a cluster or of Sentinels; "+
		"rediss:// is TLS; default $REDIS_URL, or "+defaultURL)
	flags.BoolVar(&s.cluster, "cluster", false, "it is a cluster, also with one address")
	flags.StringVar(&s.sentinel, "sentinel", "", "name of the master; the addresses are of Sentinels")
	flags.StringVar(&s.username, "username", "", "ACL user; the password is in the URL or in $REDIS_PASSWORD")
	flags.StringVar(&s.ca, "ca", "", "file with the certificates to trust")
	flags.StringVar(&s.cert, "cert", "", "file with the certificate to show")
	flags.StringVar(&s.key, "key", "", "file with its private key")
}

// connect returns a client. It reaches nobody yet.
func (s *server) connect(env func(string) string, timeout time.Duration) (redis.UniversalClient, error) {
	if timeout <= 0 {
		return nil, usage("--timeout %s: want more than 0", timeout)
	}
	text := s.url
	if text == "" {
		text = env("REDIS_URL")
	}
	if text == "" {
		text = defaultURL
	}
	one, addrs, err := parseURL(text)
	if err != nil {
		return nil, err
	}
	if s.cluster && s.sentinel != "" {
		return nil, usage("--cluster and --sentinel exclude each other")
	}
	all := &redis.UniversalOptions{
		Addrs: addrs, Username: one.Username, Password: one.Password, DB: one.DB, TLSConfig: one.TLSConfig,
		MasterName: s.sentinel, IsClusterMode: s.cluster || len(addrs) > 1 && s.sentinel == "",
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, ContextTimeoutEnabled: true,
		MaxRetries: -1, DialerRetries: 1, DisableIdentity: true,
	}
	if all.IsClusterMode {
		all.MaxRetries = 0
	}
	if s.username != "" {
		all.Username = s.username
	}
	if all.Password == "" {
		all.Password = env("REDIS_PASSWORD")
	}
	if err := s.secure(all); err != nil {
		return nil, err
	}
	return redis.NewUniversalClient(all), nil
}

// secure adds the certificates of the flags.
func (s *server) secure(to *redis.UniversalOptions) error {
	if s.ca == "" && s.cert == "" && s.key == "" {
		return nil
	}
	if to.TLSConfig == nil {
		return usage("--ca, --cert and --key need a URL that begins with rediss://")
	}
	if s.ca != "" {
		text, err := os.ReadFile(s.ca)
		if err != nil {
			return fileError(err)
		}
		to.TLSConfig.RootCAs = x509.NewCertPool()
		if !to.TLSConfig.RootCAs.AppendCertsFromPEM(text) {
			return usage("--ca %s: no certificate in it", word(s.ca))
		}
	}
	if s.cert != "" || s.key != "" {
		pair, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			return usage("--cert and --key: %w", fileError(err))
		}
		to.TLSConfig.Certificates = []tls.Certificate{pair}
	}
	return nil
}
