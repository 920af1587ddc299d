package limitsfile_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/idformat"
	"github.com/stint-go/stint/limitsfile"
)

const (
	LoginsPerAddress stint.Name = 1
	OrdersPerAccount stint.Name = 6
)

var names = stint.Names{
	LoginsPerAddress: {Label: "LoginsPerAddress", IDs: stint.IPAddress},
	OrdersPerAccount: {Label: "OrdersPerAccount", IDs: idformat.RegID},
}

const (
	defaults = `
OrdersPerAccount:
  burst: 300
  count: 300
  period: 180m
`
	overrides = `
- OrdersPerAccount:
    burst: 300
    count: 600
    period: 180m
    ids:
      - 12345678
      - id: 87654321
        comment: load test, until March
`
)

func ExampleParse() {
	limits, err := limitsfile.Parse(names, []byte(defaults), []byte(overrides))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(limits.For(OrdersPerAccount.Key("1")))
	fmt.Println(limits.For(OrdersPerAccount.Key("12345678")))
	fmt.Println(limits.For(LoginsPerAddress.Key("10.0.0.2"))) // no file configures it

	// All mistakes are reported at once.
	_, err = limitsfile.Parse(names,
		[]byte("LoginsPerAddress: {burst: 5, count: 5, period: 1 minute}"),
		[]byte("- OrdersPerAccount: {burst: 300, count: 0, period: 180m, ids: [12345678, x]}"))
	fmt.Println(err)
	var first *stint.ConfigError
	fmt.Println(errors.As(err, &first), first.File, first.Line)
	// Output:
	// 300/3h
	// 600/3h burst 300
	// unlimited
	// defaults:1: LoginsPerAddress: period is "1 minute", want a duration such as 90s, 180m, 36h, 1d or 2w
	// overrides:1: OrdersPerAccount: count is 0, want at least 1
	// overrides:1: OrdersPerAccount: invalid id "x": not of format regId: want a decimal number below 2⁶⁴ without leading zeros
	// true defaults 1
}

// files writes the files of the examples, and returns their paths.
func files() (dir, defaultsFile, overridesFile string) {
	dir, err := os.MkdirTemp("", "stint")
	if err != nil {
		log.Fatal(err)
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			log.Fatal(err)
		}
		return path
	}
	return dir, write("defaults.yml", defaults), write("overrides.yml", overrides)
}

func ExampleLoad() {
	dir, defaultsFile, overridesFile := files()
	defer os.RemoveAll(dir)

	limits, err := limitsfile.Load(names, defaultsFile, overridesFile)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(limits.For(OrdersPerAccount.Key("87654321")))
	// Output: 600/3h burst 300
}

// Only the ids in the files have limits.
func ExampleLoadOverrides() {
	dir, _, overridesFile := files()
	defer os.RemoveAll(dir)

	limits, err := limitsfile.LoadOverrides(names, overridesFile)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(limits.For(OrdersPerAccount.Key("87654321")))
	fmt.Println(limits.For(OrdersPerAccount.Key("1")))
	// Output:
	// 600/3h burst 300
	// unlimited
}

// A program whose limits are named at run time declares the labels that it finds.
func ExampleLabels() {
	dir, defaultsFile, overridesFile := files()
	defer os.RemoveAll(dir)

	labels, err := limitsfile.Labels(defaultsFile, overridesFile)
	fmt.Println(labels, err)
	// Output: [OrdersPerAccount] <nil>
}
