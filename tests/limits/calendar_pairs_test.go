package limits_test

import (
	"time"
)

const day = 24 * time.Hour
