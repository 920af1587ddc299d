package clock

// Machine returns the id of the present boot, and the machine time. wall is the
// time of the wall clock.
type Machine func(wall int64) (boot string, machine int64)

// system is the Machine of this system. Without ids of boots, machine time is
// that of the wall clock, if that may be right.
func system(wall int64) (boot string, machine int64) {
	if boot, machine = kernel(); boot != "" && len(boot) <= maxBoot {
		return boot, machine
	}
	if wall < earliest {
		return "", 0
	}
	return wallBoot, wall
}
