-- The token bucket: one bucket, or each of many for itself. This is nearly every call, so it is
-- written in line. Everything else is left to what follows: several buckets that are charged
-- together, other verbs, and keys that are no buckets (see lua/decide.lua, lua/kind/token.lua).
--
-- A bucket refills evenly. Its level is how many units it is short of full, in units so small that
-- nothing is ever rounded.
--
-- KEYS[i]      bucket i
-- ARGV[1]      take: charge the only bucket. each: charge every bucket for itself
-- ARGV[2]      tokens of one charge
-- ARGV[3]      take: charges; as many are made as fit. each: 1 to charge every bucket once, else 0
-- ARGV[4]      drain: units that flow back per millisecond
-- ARGV[5]      cost: units that one token weighs
-- ARGV[6]      capacity: units that a bucket holds
-- ARGV[6 + i]  each: charges of bucket i; absent if ARGV[3] is 1
--
-- Reply
--   take  the level found, an integer
--   each  a list: of each bucket the level found, or -1 if nothing was done there. A call for that
--         bucket alone says why
-- The level is at most 2^53 - 1. A blocked bucket has at least the level from which its first token
-- comes when the block ends. The caller derives from the level what was charged, by the same
-- arithmetic.
--
-- State: a bucket is one string key.
--   TTL    milliseconds until the bucket is full: ceil(level / drain)
--   value  what the rounding left over: TTL × drain - level, in 0 … drain - 1. A blocked bucket has
--          a second number: how many milliseconds before the key expires the block ends. Later that
--          number means nothing. Version 0.1 wrote minus one minus the first number instead
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

    -- Read the level: -1 is that of no bucket.
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
          elseif rest < 0 then -- a block of version 0.1
            rest = -1 - rest
          end
          if not rest then
            level = -1
          elseif rest < drain then -- else the value is that of another limit
            level = level - rest
          end
          if before and ttl > before + 0 then -- blocked
            level = max(level, capacity - ARGV[5] + (ttl - before) * drain)
          end
        end
      elseif ttl == -1 then
        level = -1 -- a bucket expires
      else
        value = false
      end
    end

    -- Charge as often as fits.
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
        elseif fresh and each then -- MGET finds nothing in a key of another type, too
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
    end -- else decide.lua says what is wrong
  end
  if each then return found end
end
