package dbfile_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/dbfile"
)

// A tool for the files of other programs finds their limits by label.
func ExampleStore() {
	dir, err := os.MkdirTemp("", "stint")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := dbfile.Open(filepath.Join(dir, "quota.db"), stint.Names{7: {Label: "Orders"}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	number, err := store.Number("Logins") // the lowest free one
	fmt.Println(number, err)
	fmt.Println(store.Labels())
	fmt.Println(store.Relabel(map[stint.Name]string{7: "OrdersPerAccount"}))
	fmt.Println(store.Labels())
	// Output:
	// 1 <nil>
	// map[1:Logins 7:Orders]
	// <nil>
	// map[1:Logins 7:OrdersPerAccount]
}
