//go:build !linux && !darwin

package clock

// kernel returns no id: this system does not tell its boots apart.
func kernel() (boot string, since int64) { return "", 0 }
