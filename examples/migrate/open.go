package migrate

import "github.com/stint-go/stint"

// Requests is the limit of the programs after the change.
const Requests stint.Name = 1

// open returns a Limiter of three requests an hour.
func open(file string, d stint.Durability) (*stint.Limiter, error) {
	limit := stint.PerHour(3)
	limit.Durability = d
	limits, err := stint.NewLimits(stint.Names{Requests: {Label: "Requests", Limit: limit}})
	if err != nil {
		return nil, err
	}
	return stint.Open(file, limits, nil)
}
