package stint

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLabels(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	defaults := file("defaults.yml", "Orders: {burst: 1, count: 1, period: 1m}\nLogins: {burst: 1, count: 1, period: 1m}\n")
	overrides := file("overrides.yml", "- Logins: {burst: 2, count: 1, period: 1m, ids: [a]}\n"+
		"- Exports: {burst: 2, count: 1, period: 1m, ids: [a]}\n- Exports: {burst: 3, count: 1, period: 1m, ids: [b]}\n")

	labels, err := Labels(defaults, overrides)
	require.NoError(t, err)
	assert.Equal(t, []string{"Orders", "Logins", "Exports"}, labels)

	names := Names{}
	for i, label := range labels {
		names[Name(i+1)] = NameSpec{Label: label}
	}
	_, err = LoadLimits(names, defaults, overrides)
	require.NoError(t, err, "the labels are all that LoadLimits wants declared")

	for name, text := range map[string]string{
		"empty": "", "not YAML": "a: [\n", "a scalar": "a", "a list of scalars": "- a\n- b\n", "null": "null\n",
		"odd labels": "? [a]\n: b\n\"\": c\n", "two documents": "---\n...\n",
	} {
		labels, err := Labels(file("bad.yml", text))
		assert.NoError(t, err, name)
		assert.Empty(t, labels, name)
	}
	_, err = Labels(defaults, filepath.Join(dir, "missing.yml"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
}
