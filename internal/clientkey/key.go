// Package clientkey has the keys of clients as text: keys of several parts, keys in Redis, and keys of addresses.
//
// It owns escapes, hashes and the secret, so different clients have different keys, and which addresses are one
// client. It must know no request, policy or bucket.
package clientkey

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"hash/maphash"
	"strings"
	"sync"
)

const (
	separator = `|`  // a part escapes it, and the backslash
	maxPart   = 1024 // bytes of a part that stands as it is
)

var escaper = strings.NewReplacer(`|`, `\|`, `\`, `\\`)

// Join returns one key for a name and parts. Different tuples have different keys.
//
// A part of more than a kilobyte stands as a hash: it may be a header, which clients fill, and each Join of a Join
// could double it.
func Join(name string, parts ...string) string {
	size, escape := min(len(name), maxPart)+len(parts), hasSpecial(name)
	for _, part := range parts {
		size += min(len(part), maxPart)
		escape = escape || hasSpecial(part)
	}
	var key strings.Builder
	key.Grow(size)
	write := func(s string) {
		switch {
		case len(s) > maxPart:
			s = hashOf(s)
		case escape:
			s = escaper.Replace(s)
		}
		key.WriteString(s)
	}
	write(name)
	for _, part := range parts {
		key.WriteString(separator)
		write(part)
	}
	return key.String()
}

// Split returns the name and the only part of a key of Join. It is false if there are more parts, or one stands as a
// hash.
func Split(key string) (name, part string, ok bool) {
	var parts [2]strings.Builder
	n := 0
	for i := 0; i < len(key); i++ {
		switch {
		case key[i] == separator[0]:
			if n++; n == len(parts) {
				return "", "", false
			}
			continue
		case key[i] == '\\':
			if i++; i == len(key) || key[i] == hashMark {
				return "", "", false
			}
		}
		parts[n].WriteByte(key[i])
	}
	return parts[0].String(), parts[1].String(), n == 1
}

// hasSpecial reports whether a part has to be escaped.
func hasSpecial(part string) bool {
	return len(part) <= maxPart && (strings.IndexByte(part, separator[0]) >= 0 || strings.IndexByte(part, '\\') >= 0)
}

// hashOf returns what a long part stands as. No escaped text begins with a backslash and a hash mark. It is longer than
// maxPlain, so that a key with such a part is a hash in Redis, as any long key.
func hashOf(part string) string {
	sum := sha256.New()
	var chunk [maxPart]byte // rather than a copy of the part
	for len(part) > 0 {
		n := copy(chunk[:], part)
		_, _ = sum.Write(chunk[:n]) // it has no error
		part = part[n:]
	}
	return string(hex.AppendEncode([]byte{'\\', hashMark}, sum.Sum(nil)))
}

const (
	maxPlain = 64 // bytes of a key that needs no hash
	hashMark = '#'
)

// Text writes keys as they stand in Redis. The zero Text has no secret.
type Text struct{ macs *sync.Pool } // of hash.Hash; nil without a secret

// NewText returns a Text that hides each key with the secret, or the zero Text if the secret is
// nil.
func NewText(secret []byte) Text {
	if secret == nil {
		return Text{}
	}
	return Text{&sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}}
}

// Append appends a key as it stands in a hash tag: the key itself, or a hash of it. Different keys
// have different texts.
//
// The text is a hash if the key is longer than 64 bytes, begins as a hash does, or holds a brace or
// anything but printable ASCII. With a secret it is always a hash, made with the secret. If the
// prefix is a policy's, which ends in a separator, the key is escaped: the text is as of [Join]
// of the policy's name and the key.
func (t Text) Append(dst []byte, prefix, key string) []byte {
	start := len(dst)
	dst = append(dst, prefix...)
	switch {
	case prefix == "":
	case len(key) > maxPart:
		key = hashOf(key)
	case hasSpecial(key):
		key = escaper.Replace(key)
	}
	dst = append(dst, key...)
	text := dst[start:]
	if t.macs != nil {
		mac := t.macs.Get().(hash.Hash)
		defer t.macs.Put(mac)
		mac.Reset()
		_, _ = mac.Write(text) // it has no error
		var sum [sha256.Size]byte
		return appendHash(dst[:start], mac.Sum(sum[:0]))
	}
	hides := len(text) > maxPlain || len(text) > 0 && text[0] == hashMark
	for i := 0; i < len(text) && !hides; i++ {
		hides = text[i] < ' ' || text[i] > '~' || text[i] == '{' || text[i] == '}'
	}
	if !hides {
		return dst
	}
	sum := sha256.Sum256(text)
	return appendHash(dst[:start], sum[:])
}

// IsHash reports whether a text is a hash as [Text.Append] writes it. A client can have such a name, too.
func IsHash(text string) bool {
	sum, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimPrefix(text, string(hashMark)))
	return err == nil && len(sum) == sha256.Size && text == string(appendHash(nil, sum))
}

// Hashes returns a Text of clients that are known by their hashes alone: it writes a hash as it is, and no prefix.
func Hashes() Text { return Text{&sync.Pool{New: func() any { return new(known) }}} }

// known is a hash.Hash of texts that end in a hash, which is what it returns.
type known struct{ text []byte }

func (k *known) Write(p []byte) (int, error) {
	k.text = append(k.text, p...)
	return len(p), nil
}

func (k *known) Sum(dst []byte) []byte {
	end := k.text[max(0, len(k.text)-base64.RawURLEncoding.EncodedLen(sha256.Size)):]
	dst, _ = base64.RawURLEncoding.AppendDecode(dst, end)
	return dst
}

func (k *known) Reset()         { k.text = k.text[:0] }
func (k *known) Size() int      { return sha256.Size }
func (k *known) BlockSize() int { return 1 }

func appendHash(dst, sum []byte) []byte {
	return base64.RawURLEncoding.AppendEncode(append(dst, hashMark), sum)
}

// seed makes the hashes of keys. A process has one, so that equal keys of different limiters have
// equal hashes.
var seed = maphash.MakeSeed()

// Hash returns the hash of a key that [Text.Append] wrote. It holds in this process alone.
func Hash(text []byte) uint64 { return maphash.Bytes(seed, text) }
