package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// fetch copies what a running program's status page gives of its file.
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
		return failed(fmt.Errorf("%s: %s: %s; it takes statuspage.Options.AllowSnapshot", u.Redacted(), response.Status, strings.Join(strings.Fields(string(reason)), " ")))
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
		return failed(fmt.Errorf("%s: the copy ended before it was whole: %w", u.Redacted(), err))
	}
	return nil
}

// untilInterrupted returns the command's context, which also ends at a signal.
func untilInterrupted(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(cmd.Context(), heeded([]os.Signal{os.Interrupt, syscall.SIGTERM})...)
}

// heeded returns those of the signals that the process was not started to ignore, as nohup, or a script for what it runs in the
// background, starts one. TERM is always among them.
func heeded(signals []os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), signal.Ignored)
}

// interruption returns errInterrupted once the context has ended.
func interruption(ctx context.Context) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return nil
}
