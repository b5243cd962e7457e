package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// tlsFiles are those of a server that is its own authority.
type tlsFiles struct{ certificate, key string }

// certificates makes the files of a server at 127.0.0.1, and the configuration of its clients.
func certificates(t *testing.T) (tlsFiles, *tls.Config) {
	key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	certificate := testkit.Must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	private := testkit.Must(x509.MarshalPKCS8PrivateKey(key))
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	files := tlsFiles{write("cert.pem", "CERTIFICATE", certificate), write("key.pem", "PRIVATE KEY", private)}
	parsed := testkit.Must(x509.ParseCertificate(certificate))
	authorities := x509.NewCertPool()
	authorities.AddCert(parsed)
	return files, &tls.Config{RootCAs: authorities}
}
