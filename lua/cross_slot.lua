#!lua flags=allow-cross-slot-keys
-- The beginning of a script for a node of a cluster, whose keys may be in several hash slots. A
-- fast path follows, which decides on each key for itself.
--
-- Redis wants the declared keys of a call to be in one hash slot. So only the first is declared,
-- and the others are arguments. Servers before Redis 7.0 do not compile the script, and others may
-- refuse it: then each key needs a call of its own.
--
-- KEYS[1]         key 1, which routes the call
-- ARGV[1 … 6]     as the fast path documents them for each
-- ARGV[6 + i]     charges of key i, i = 1 … k; absent if ARGV[3] is 1
-- ARGV[last …]    keys 2 … k, which the caller believes to be on this node
--
-- Reply: as the fast path documents it. It is -1 also for a key that is not on this node, has left
-- it, or may not be used by this user: nothing was done there, and the other keys are charged.
--
-- After ASKING, Redis lets a call use any hash slot that the node imports, whether or not its keys
-- have arrived. Such a call must have KEYS[1] alone: without the last arguments, and with the
-- charges of one key.

local try = redis.pcall
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local format, match = string.format, string.match

local count = #ARGV - 5
if ARGV[3] == '0' then count = count / 2 end
local KEYS, ARGV = {KEYS[1], unpack(ARGV, #ARGV - count + 2)}, ARGV

-- call is redis.call, but for an error it returns a value or an expiry that no bucket has.
local function call(command, key, ...)
  if command == 'PTTL' then
    local ttl = try(command, key)
    return type(ttl) == 'number' and ttl or -1
  elseif command == 'MGET' then -- which takes no keys of several hash slots
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
