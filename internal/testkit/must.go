package testkit

// Must returns the result of a call that is to have no error: it panics if there is one.
func Must[T any](result T, err error) T {
	if err != nil {
		panic(err)
	}
	return result
}

// Err returns the error of a call with a result.
func Err[T any](_ T, err error) error { return err }
