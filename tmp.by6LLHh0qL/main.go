package main

import (
	"github.com/stint-go/stint"
	
)

func main() {
	limits, _ := stint.NewLimits(stint.Names{1: {Label: "a", Limit: stint.PerHour(10)}})
	l, _ := stint.Open("quota.db", limits, nil)
	l.Spend(stint.Name(1).Key("a"), 1)
	
}
