package ginlimitprom_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// dashboard is what the tests read of dashboard.json.
type dashboard struct {
	Inputs []struct{ Name, Type, PluginID string } `json:"__inputs"`
	Panels []struct {
		Title, Type string
		FieldConfig struct{ Defaults struct{ Unit string } }
		Targets     []struct{ Expr string }
	}
}

func readDashboard(t *testing.T) (board dashboard, text string) {
	data := testkit.Must(os.ReadFile("dashboard.json"))
	require.NoError(t, json.Unmarshal(data, &board))
	require.Greater(t, len(board.Panels), 8)
	return board, string(data)
}

// TestDashboardIsAnExport: Grafana asks for the data source when it is imported, and every panel has a unit.
func TestDashboardIsAnExport(t *testing.T) {
	t.Parallel()
	board, text := readDashboard(t)
	require.Len(t, board.Inputs, 1)
	require.Equal(t, "DS_PROMETHEUS datasource prometheus",
		strings.Join([]string{board.Inputs[0].Name, board.Inputs[0].Type, board.Inputs[0].PluginID}, " "))
	uids := regexp.MustCompile(`"type": "prometheus",\s*"uid": "([^"]*)"`).FindAllStringSubmatch(text, -1)
	require.GreaterOrEqual(t, len(uids), 2+2*len(board.Panels), "of two variables, of each panel and each target")
	for _, uid := range uids {
		require.Equal(t, "${DS_PROMETHEUS}", uid[1])
	}
	require.Equal(t, len(uids), strings.Count(text, `"uid"`)-1, "and of the dashboard")
	for _, p := range board.Panels {
		require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
	}
}

// expressions returns those of the dashboard, for all jobs and names.
func expressions(t *testing.T, interval string) (all []string) {
	board, _ := readDashboard(t)
	variables := strings.NewReplacer("$__rate_interval", interval, "$job", ".*", "$name", ".*")
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			all = append(all, variables.Replace(target.Expr))
		}
	}
	return all
}

// TestExpressionsParse has promtool read the alert rules, and the dashboard's expressions as rules.
func TestExpressionsParse(t *testing.T) {
	testkit.Nightly(t, "needs Prometheus")
	t.Parallel()
	promtool := testkit.Need(t, "promtool")
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for i, expr := range expressions(t, "5m") {
		text := testkit.Must(json.Marshal(expr))
		fmt.Fprintf(&rules, "  - record: panel:%d\n    expr: %s\n", i, text)
	}
	file := filepath.Join(t.TempDir(), "dashboard.yml")
	require.NoError(t, os.WriteFile(file, []byte(rules.String()), 0o600))
	out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "--lint=all",
		"--lint-fatal", "alerts.yml", file).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestAlertRules has promtool run the tests of alerts_test.yml.
func TestAlertRules(t *testing.T) {
	testkit.Nightly(t, "needs Prometheus")
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), testkit.Need(t, "promtool"), "test", "rules",
		"alerts_test.yml").CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestAlertsLeadToTheirRunbooks: each alert has a name of ginlimit, a severity, a section of the
// operations guide and a test in which it fires, and is one for all policies and processes of an
// application, but for the one that is of a policy.
func TestAlertsLeadToTheirRunbooks(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for _, file := range []string{"alerts.yml", "alerts_test.yml", "../../docs/operations.md"} {
		text := testkit.Must(os.ReadFile(file))
		files[file] = string(text)
	}
	alerts := strings.Split(files["alerts.yml"], "- alert: ")[1:]
	require.NotEmpty(t, alerts)
	pages := 0
	for _, alert := range alerts {
		name, rest, _ := strings.Cut(alert, "\n")
		assert.True(t, strings.HasPrefix(name, "Ginlimit"), name)
		if strings.Contains(rest, "severity: page") {
			pages++
		}
		assert.Contains(t, rest,
			"runbook_url: https://github.com/ginlimit/ginlimit/blob/main/docs/operations.md#"+strings.ToLower(name)+"\n")
		severity := regexp.MustCompile(`severity: (page|ticket)\}`).FindStringSubmatch(rest)
		require.NotNil(t, severity, name)
		assert.True(t, strings.Contains(files["../../docs/operations.md"], "\n### "+name+"\n\nA "+severity[1]+": "),
			"%s has no section that begins with its severity", name)
		assert.True(t, strings.Contains(files["alerts_test.yml"], "alertname: "+name+"\n        eval_time"),
			"%s fires in no test", name)
		for _, by := range regexp.MustCompile(`by \(([^)]*)\)`).FindAllStringSubmatch(rest, -1) {
			if name == "GinlimitDeniesSuddenly" {
				assert.Equal(t, "job, name", by[1])
				continue
			}
			assert.Contains(t, []string{"job", "job, le"}, by[1], name)
		}
	}
	assert.Equal(t, 2, pages, "of which the one is silent while the other fires")
}
