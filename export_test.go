package ginlimit

// QueueAsks is how many decisions may wait.
const QueueAsks = queueAsks

// SlotText is how a key stands in a slot tag.
func SlotText(key string) string { return string(appendSlotText(nil, "", key)) }
