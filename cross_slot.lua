#!lua flags=allow-cross-slot-keys
-- Many decisions on a node of a cluster, each on a bucket or window of its own, whatever their slots. It comes before
-- script.lua or the scripts of windows, and has their verb each read its keys from ARGV, as those of a call's KEYS must be
-- in one slot. Servers before Redis 7.0 do not compile it, and others may refuse it: then each key needs a call.
--
-- KEYS[1]         bucket 1, which routes the call
-- ARGV[1 … 6]     as they document each, k being the number of all buckets
-- ARGV[6 + i]     charges of bucket i, i = 1 … k; absent if ARGV[3] is 1
-- ARGV[last …]    the last k - 1 arguments are the keys of buckets 2 … k. The caller takes them to be on the node of KEYS[1]
--
-- Reply: as they document each. It is -1 for a bucket too that is not on this node, has left it, or may not be used by
-- this user: nothing was done there, and the others are charged all the same.
--
-- To a call that follows ASKING, Redis gives the keys of any slot that the node imports, whether or not they have arrived.
-- So such a call must have KEYS[1] alone: without the last arguments, and with one bucket's charges.

local count, type, call, try = #ARGV - 5, type, redis.call, redis.pcall
if ARGV[3] == '0' then count = count / 2 end
local KEYS = {KEYS[1], unpack(ARGV, #ARGV - count + 2)}
local redis = {pcall = try}

-- Redis' own, but an error is a value or an expiry that no bucket has.
function redis.call(command, key, ...)
  if command == 'PTTL' then
    local ttl = try(command, key)
    return type(ttl) == 'number' and ttl or -1
  elseif command == 'MGET' then -- not of several slots
    local values = {unpack(KEYS)}
    for i = 1, count do
      local value = try('GET', values[i])
      if type(value) == 'table' then value = '' end
      values[i] = value
    end
    return values
  end
  return call(command, key, ...)
end

