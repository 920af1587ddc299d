package hostlimit

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// What a program does with a *stint.Limiter it does with a *Limiter of this
// package: the methods have the same names and types.
func TestVocabulary(t *testing.T) {
	theirs, ours := reflect.TypeFor[*stint.Limiter](), reflect.TypeFor[*Limiter]()
	missing := map[string]bool{"InPlace": true} // is for the owner of a file
	for i := range theirs.NumMethod() {
		want := theirs.Method(i)
		got, ok := ours.MethodByName(want.Name)
		if missing[want.Name] {
			require.False(t, ok, want.Name)
			continue
		}
		require.True(t, ok, "%s is missing", want.Name)
		require.Equal(t, want.Func.Type().NumIn(), got.Func.Type().NumIn(), want.Name)
		for k := 1; k < want.Func.Type().NumIn(); k++ { // 0 is the receiver
			require.Equal(t, want.Func.Type().In(k), got.Func.Type().In(k), want.Name)
		}
		require.Equal(t, want.Func.Type().NumOut(), got.Func.Type().NumOut(), want.Name)
		for k := range want.Func.Type().NumOut() {
			require.Equal(t, want.Func.Type().Out(k), got.Func.Type().Out(k), want.Name)
		}
	}
}
