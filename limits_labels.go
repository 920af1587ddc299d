package stint

import (
	"os"

	"gopkg.in/yaml.v3"
)

// Labels returns the labels that limits files name, defaults and overrides, each once and in the order they first
// appear in. It is for programs whose limits are named at run time: they declare the labels, and then call LoadLimits,
// which says what else is wrong with the files; what is not a limits file, or not YAML, has no labels here.
func Labels(files ...string) ([]string, error) {
	var labels []string
	seen := make(map[string]bool)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var root yaml.Node
		if yaml.Unmarshal(text, &root) != nil || len(root.Content) != 1 {
			continue
		}
		maps := root.Content // of labels: one in a defaults file, in an overrides file one per entry
		if maps[0].Kind == yaml.SequenceNode {
			maps = maps[0].Content
		}
		for _, m := range maps {
			if m.Kind != yaml.MappingNode {
				continue
			}
			for i := 0; i < len(m.Content); i += 2 {
				if label := m.Content[i]; label.Kind == yaml.ScalarNode && label.Value != "" && !seen[label.Value] {
					seen[label.Value] = true
					labels = append(labels, label.Value)
				}
			}
		}
	}
	return labels, nil
}
