package idformat_test

import (
	"fmt"
	"strings"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/idformat"
)

// suffixes is a short list of public suffixes. A program passes publicsuffix.List of
// golang.org/x/net/publicsuffix.
type suffixes []string

func (s suffixes) PublicSuffix(domain string) string {
	for _, suffix := range s {
		if domain == suffix || strings.HasSuffix(domain, "."+suffix) {
			return suffix
		}
	}
	return domain[strings.LastIndexByte(domain, '.')+1:]
}

// One id has one spelling, so it has one bucket.
func Example() {
	for _, format := range []stint.IDFormat{idformat.IPv6Range, idformat.Hostname, idformat.Domain(suffixes{"co.uk"}), idformat.FQDNSet} {
		for _, id := range []string{"2001:0db8:0::/48", "WWW.Example.co.uk"} {
			if canonical, err := format.Canonical(id); err == nil {
				fmt.Println(format, canonical)
			}
		}
	}
	_, err := idformat.RegID.Canonical("007")
	fmt.Println(err)
	// Output:
	// ipv6Range 2001:db8::/48
	// hostname www.example.co.uk
	// fqdnSet 27861afeb9421638559df14a55ac583817700983f7027d896a1d57abd36e2e96
	// stint: invalid id "007": not of format regId: want a decimal number below 2⁶⁴ without leading zeros
}

func ExampleAnyOf() {
	format := stint.Tuple(idformat.RegID, idformat.AnyOf(stint.IPAddress, idformat.Domain(suffixes{"co.uk"})))
	for _, id := range []string{"7:Example.co.uk", "7:2001:DB8::1", "7:www.example.co.uk"} {
		fmt.Println(format.Canonical(id))
	}
	// Output:
	// 7:example.co.uk <nil>
	// 7:2001:db8::1 <nil>
	//  stint: invalid id "7:www.example.co.uk": not of format tuple(regId,anyOf(ipAddress,domain)): part 2, "www.example.co.uk": not of format anyOf(ipAddress,domain): not of format ipAddress: want an address such as 10.0.0.1 or 2001:db8::1; not of format domain: want its eTLD+1, example.co.uk
}
