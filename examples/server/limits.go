package main

import (
	_ "embed"
	"errors"
	"fmt"
	"log"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/limitsfile"
)

// The limits of this program. The file stores the numbers, so never change what
// a number means.
const (
	RequestsPerAddress stint.Name = 1
	RequestsPerAccount stint.Name = 2
	LoginsPerAddress   stint.Name = 3
	LoginsPerUser      stint.Name = 4
	LoginsPerDay       stint.Name = 5
)

var names = stint.Names{
	RequestsPerAddress: {Label: "RequestsPerAddress"},
	RequestsPerAccount: {Label: "RequestsPerAccount"},
	LoginsPerAddress:   {Label: "LoginsPerAddress"},
	LoginsPerUser:      {Label: "LoginsPerUser"},
	LoginsPerDay:       {Label: "LoginsPerDay"},
}

//go:embed limits.yml
var defaultLimits []byte

//go:embed plans.yml
var defaultPlans []byte

// loadLimits returns the limits in the files, or the built-in limits if no file
// is named.
func loadLimits(limitsFile, plansFile string) (*stint.Limits, error) {
	switch {
	case limitsFile == "":
		return limitsfile.Parse(names, defaultLimits, defaultPlans)
	case plansFile == "":
		return limitsfile.Load(names, limitsFile)
	}
	return limitsfile.Load(names, limitsFile, plansFile)
}

// reloadLimits puts the limits of the files in force. After a mistake in the
// files the old limits stay.
func reloadLimits(limiter *stint.Limiter, limitsFile, plansFile string) {
	limits, err := loadLimits(limitsFile, plansFile)
	if err == nil {
		err = limiter.SetLimits(limits)
	}
	switch {
	case errors.Is(err, stint.ErrNotDurable):
		log.Print("the new limits are in force: ", err)
	case err != nil:
		log.Print("the old limits stay: ", err)
	default:
		fmt.Println("limits loaded")
	}
}
