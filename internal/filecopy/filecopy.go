// Package filecopy copies and edits the files of tests. A file has a log of
// 1 MiB, most of it zeros. So copies have holes there, and share the memory that
// they are read into.
package filecopy

import (
	"bytes"
	"io"
	"os"
	"sync"

	"github.com/stint-go/stint/internal/bboltpage"
)

var (
	buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	zeros   [bboltpage.Size]byte
)

// Copy makes a copy of a file that may be in use, as a killed process would leave
// it. If a background commit came during the read, the copy would have pages of two
// transactions. So it reads again until the meta pages stay as they were.
func Copy(from, to string) error {
	b := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(b)
	for {
		b.Reset()
		after, err := read(from, b)
		if err != nil {
			return err
		}
		if bytes.HasPrefix(b.Bytes(), after) {
			return Write(to, b.Bytes())
		}
	}
}

// read reads a file, and then its meta pages again.
func read(path string, b *bytes.Buffer) (metas []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	b.Grow(int(info.Size()) + bytes.MinRead)
	if _, err = b.ReadFrom(file); err != nil {
		return nil, err
	}
	metas = make([]byte, 2*bboltpage.Size)
	n, err := file.ReadAt(metas, 0)
	if err == io.EOF {
		err = nil
	}
	return metas[:n], err
}

// Write makes a file with holes for pages of zeros.
func Write(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	zero := func(at int) bool {
		return bytes.Equal(content[at:min(at+len(zeros), len(content))], zeros[:min(len(zeros), len(content)-at)])
	}
	for at := 0; at < len(content); {
		begin := at
		for at < len(content) && !zero(at) {
			at += len(zeros)
		}
		if end := min(at, len(content)); begin < end {
			if _, err := file.WriteAt(content[begin:end], int64(begin)); err != nil {
				return err
			}
		} else {
			at += len(zeros)
		}
	}
	return file.Truncate(int64(len(content)))
}
