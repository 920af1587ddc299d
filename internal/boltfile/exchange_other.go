//go:build !linux

package boltfile

import "errors"

func exchange(_, _ string) error { return errors.ErrUnsupported }
