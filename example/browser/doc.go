// Package browser tests the page of the example, the page of operators, and a page of another origin, in Chromium. It
// is a module of its own, so that nothing else depends on a browser.
//
//	cd example/browser && go test -count=1 ./...
//	cd example/browser && go test -count=1 -run Screenshot -screenshot ../../docs/example.png
//	cd example/browser && go test -count=1 -run Screenshot -screenshot ../../docs/admin.png
package browser
