package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

// fetch copies the file of a running program from its status page.
func fetch(cmd *cobra.Command, page string, to io.Writer) error {
	u, err := url.Parse(page)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("--snapshot %q: want the URL of a status page: http://localhost:8080/limits", page)
	}
	query := u.Query()
	query.Set("format", "snapshot")
	u.RawQuery = query.Encode()
	ctx, stop := untilInterrupted(cmd)
	defer stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		if cause := interruption(ctx); cause != nil {
			return cause
		}
		return failed(fmt.Errorf("%w; is the program running?", err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, 500))
		return failed(fmt.Errorf("%s: %s: %s; the program must set statuspage.Options.AllowSnapshot",
			u.Redacted(), response.Status, strings.Join(strings.Fields(string(reason)), " ")))
	}
	if kind := response.Header.Get("Content-Type"); kind != "application/octet-stream" {
		return failed(fmt.Errorf("%s answers with %s, not with a copy of a file: is it a status page?", u.Redacted(), kind))
	}
	bar := newProgress(cmd.ErrOrStderr(), "copying", response.ContentLength, true)
	defer bar.close()
	if _, err := io.Copy(to, bar.reader(response.Body)); err != nil {
		if cause := interruption(ctx); cause != nil {
			return cause
		}
		return failed(fmt.Errorf("%s: the copy is incomplete: %w", u.Redacted(), err))
	}
	return nil
}
