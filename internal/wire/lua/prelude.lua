-- The beginning of every script, except on a cluster node (see cross_slot.lua). All parts of a
-- script use these names, and the constants that compose.go adds:
--
--   exact        the largest integer that a number represents exactly: 2^53 - 1
--   wrap         modulus of the totals in a sliding window's log, more than any limit
--   grace        milliseconds that the key of a calendar period outlives the period
--   life         milliseconds that a process' report of its slots is valid, as text
--   whole        begins a reply that has more than one integer for a calendar period
--   withRecords, noBans, limitBans                 values of arguments, see decide.lua, guards.lua
--   spans, maxTimes, ever                          bounds of records, see decide.lua
--   maxRewritten  the most entries of a sliding window's log that a give-back rewrites
--   parts, maxFinish, slack, minGone, maxGone, maxWalk    of tenants, see bucket.Shares

local redis, math, string = redis, math, string -- locals are faster than globals
local KEYS, ARGV, call, try = KEYS, ARGV, redis.call, redis.pcall
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local format, match = string.format, string.match

-- expiry returns the expiry to set so that a key lasts for some milliseconds, counted from when its
-- TTL was found; that is 0 if there was no key. Before Redis 7.2 the clock goes on while a script
-- runs. A key that the script has made anew has no TTL.
local function expiry(key, found, lasts)
  local left = found > 0 and call('PTTL', key) or 0
  if left > 0 then lasts = max(1, lasts - (found - left)) end
  return format('%d', lasts)
end
