#!lua flags=allow-cross-slot-keys
-- The beginning of a script for a cluster node, whose keys may be in several hash slots. A fast
-- path follows, which decides on each key for itself.
--
-- The declared keys of a call must be in one hash slot. So only the first key is declared, and the
-- others are arguments. Servers before Redis 7.0 do not compile the script, and others may deny it.
-- Then each key needs its own call.
--
-- KEYS[1]         key 1, which routes the call
-- ARGV[1 … 6]     as the fast path documents them for each
-- ARGV[6 + i]     charges of key i, i = 1 … k; absent if ARGV[3] is 1
-- ARGV[last …]    keys 2 … k, which the caller expects on this node
--
-- Reply: as the fast path documents it. It is -1 also for a key that is not on this node, has left
-- it, or that this user may not use. Nothing was done to that key; the others are charged.
--
-- State: as the fast path documents it, which says why expiry loses nothing.
--
-- After ASKING, Redis lets a call use any hash slot that the node imports, even before its keys
-- have arrived. Such a call must have KEYS[1] alone: without the last arguments, and with the
-- charges of one key.

local try = redis.pcall
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local format, match = string.format, string.match

local count = #ARGV - 5
if ARGV[3] == '0' then count = count / 2 end
local KEYS, ARGV = {KEYS[1], unpack(ARGV, #ARGV - count + 2)}, ARGV

-- call is redis.call, but instead of an error it returns a value or an expiry that no bucket has.
local function call(command, key, ...)
  if command == 'PTTL' then
    local ttl = try(command, key)
    return type(ttl) == 'number' and ttl or -1
  elseif command == 'MGET' then -- MGET refuses keys of several hash slots
    local values = {}
    for i = 1, count do
      local value = try('GET', KEYS[i])
      if type(value) == 'table' then value = '' end
      values[i] = value
    end
    return values
  end
  return redis.call(command, key, ...)
end
