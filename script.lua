-- The token bucket: one bucket, or many that are decided each for itself. Nearly every call is one
-- of these, so the code is inline. Other cases fall through to the code that follows: buckets
-- charged together, other verbs, and keys that are not buckets (see decide.lua and kind/token.lua
-- in internal/wire/lua).
--
-- A bucket refills evenly. Its level is the number of units that it lacks. Units are so small that
-- nothing is ever rounded.
--
-- KEYS[i]      bucket i
-- ARGV[1]      take: charge the only bucket. each: charge every bucket for itself
-- ARGV[2]      tokens of one charge
-- ARGV[3]      take: charges; only those that fit are made. each: 1 to charge every bucket once,
--              else 0
-- ARGV[4]      drain: units that flow back per millisecond
-- ARGV[5]      cost: units of one token
-- ARGV[6]      capacity: units that a bucket holds
-- ARGV[6 + i]  each: charges of bucket i; absent if ARGV[3] is 1
--
-- Reply
--   take  the level found, an integer
--   each  a list: the level found of each bucket, or -1 if nothing was done to it. A call for that
--         bucket alone returns the error
-- The level is at most 2^53 - 1. The level of a blocked bucket is raised so that its first token
-- comes when the block ends. The caller computes from the level what was charged, by the same
-- arithmetic.
--
-- State: a bucket is one string key.
--   TTL    milliseconds until the bucket is full: ceil(level / drain)
--   value  the rounding rest: TTL × drain - level, in 0 … drain - 1. A blocked bucket has a second
--          number: how many milliseconds before the key expires the block ends. The number is void
--          after that
-- A missing key is a full bucket, so expiry loses nothing. The expiry is the only clock.

local verb = ARGV[1]
local each = verb == 'each'
local charges = (each or verb == 'take') and ARGV[3] + 0 or 0
if each or charges > 0 and #KEYS == 1 then
  local once = each and charges == 1
  local drain, charge, capacity = ARGV[4] + 0, ARGV[2] * ARGV[5], ARGV[6] + 0
  local values = each and call('MGET', unpack(KEYS))
  local found = each and {}
  for i = 1, #KEYS do
    local key = KEYS[i]
    local value
    if each then
      value, charges = values[i], once and 1 or ARGV[6 + i] + 0
    else
      value = call('GET', key)
    end

    -- Read the level; -1 means that the key is no bucket.
    local level, fresh = 0, not value
    if value then
      local ttl = call('PTTL', key)
      if ttl > 0 then
        level = ttl * drain
        if value ~= '0' then
          local rest, before = tonumber(value), nil
          if not rest then
            rest, before = match(value, '^(%d+) (%d+)$')
            rest = tonumber(rest)
          end
          if not rest or rest < 0 then
            level = -1
          elseif rest < drain then -- else it is from another limit
            level = level - rest
          end
          if before and ttl > before + 0 then -- blocked
            level = max(level, capacity - ARGV[5] + (ttl - before) * drain)
          end
        end
      elseif ttl == -1 then
        level = -1 -- a bucket always expires
      else
        value = false
      end
    end

    -- Make the charges that fit.
    if level >= 0 then
      local after = level + charges * charge
      if after > capacity then
        charges = floor((capacity - level) / charge)
        after = level + charges * charge
      end
      if charges > 0 then
        local reply
        local ttl = ceil(after / drain)
        local rest = ttl * drain - after
        if rest == 0 and value == '0' then
          reply = try('PEXPIRE', key, format('%d', ttl))
        elseif fresh and each then -- MGET returns nil for a key of another type too
          reply = try('SET', key, format('%d', rest), 'PX', format('%d', ttl), 'NX')
        else
          reply = try('SET', key, format('%d', rest), 'PX', format('%d', ttl))
        end
        if not reply or type(reply) == 'table' and reply.err then level = -1 end
      end
    end
    if level > exact then level = exact end
    if each then
      found[i] = level
    elseif level >= 0 then
      return level, charges
    end -- else decide.lua returns the error
  end
  if each then return found end
end
