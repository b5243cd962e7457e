-- The token bucket: one decision on the buckets of one key, all charged or none; or many decisions,
-- each on a bucket of its own.
--
-- KEYS[i]        bucket i, i = 1 … k; all in one hash slot
-- ARGV[1]        charges: > 0 take as many of them as fit, 0 look, < 0 give so many back; or the word each
-- ARGV[3i - 1]   drain of bucket i: units that flow back per millisecond
-- ARGV[3i]       charge of bucket i: units that one charge weighs; when giving back, one token;
--                when blocking, the level to raise the bucket to
-- ARGV[3i + 1]   capacity of bucket i: units it holds
-- ARGV[3k + 2]   the word block or the word reset, or absent
--
-- With the word each, ARGV[2], ARGV[3] and ARGV[4] are those of every bucket, no key comes twice, and
-- ARGV[4 + i] is the charges to take from bucket i; all are absent where each is 1.
--
-- Reply: for each bucket
--   1. the level found: units missing from a full bucket. A single integer when k is 1, but not with each.
--      With each, -1 where nothing was done: that bucket is to be asked for alone, and tells why.
-- The caller derives what was taken from the levels, by the arithmetic used here.
--
-- State: a bucket is one string key.
--   TTL    milliseconds until it is full: ceil(level / drain)
--   value  what the rounding left over: TTL × drain - level, in 0 … drain - 1;
--          of a blocked bucket, minus one minus that
-- A full bucket has no key, so expiry loses nothing, and no clock is read but Redis' own.
--
-- Portable: integers below 2^53 only, no TIME, every key in KEYS.

local call, floor, ceil, format = redis.call, math.floor, math.ceil, string.format
local exact = 9007199254740991 -- 2^53 - 1, the largest level told

-- One bucket to take from, or each of many: in line, as this is nearly every call.
local each = ARGV[1] == 'each'
local charges = each and 1 or ARGV[1] + 0
if charges > 0 and (each or #KEYS == 1) then
  local drain, charge, capacity = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
  local values = each and call('MGET', unpack(KEYS))
  local found = each and {}
  for i = 1, #KEYS do
    local key = KEYS[i]
    local value
    if each then
      value, charges = values[i], (ARGV[4 + i] or 1) + 0
    else
      value = call('GET', key)
    end
    local level, fresh = 0, not value -- without a key
    if value then
      local ttl = call('PTTL', key)
      if ttl > 0 then
        level = ttl * drain
        if value ~= '0' then
          local rest = tonumber(value)
          if not rest then
            level = -1
          else
            if rest < 0 then rest = -1 - rest end
            if rest < drain then level = level - rest end -- else it is another limit's
          end
        end
      elseif ttl == -1 then
        level = -1 -- no expiry, so it is no bucket
      else
        value = false
      end
    end

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
          reply = redis.pcall('PEXPIRE', key, format('%d', ttl))
        elseif fresh and each then -- or of another type, as MGET does not tell
          reply = redis.pcall('SET', key, format('%d', rest), 'PX', format('%d', ttl), 'NX')
        else
          reply = redis.pcall('SET', key, format('%d', rest), 'PX', format('%d', ttl))
        end
        if not reply or type(reply) == 'table' and reply.err then level = -1 end
      end
    end
    if level > exact then level = exact end
    if each then
      found[i] = level
    elseif level >= 0 then
      return level
    end -- else the way of several buckets says what is wrong
  end
  if each then return found end
  charges = ARGV[1] + 0
end

local levels, ttls, rests, blocked = {}, {}, {}, {}
for i, key in ipairs(KEYS) do
  local level, value, ttl = 0, call('GET', key), 0
  if value then
    ttl = call('PTTL', key)
    if ttl == -1 then error('the key has no expiry, so it is no bucket') end
  end
  if ttl > 0 then
    local drain, rest = ARGV[3 * i - 1] + 0, value + 0
    if rest < 0 then
      blocked[i] = true
      rest = -1 - rest
    end
    level = ttl * drain
    if rest < drain then level = level - rest end
    ttls[i], rests[i] = ttl, rest
  end
  levels[i] = level < exact and level or exact
  if charges > 0 then
    local charge, capacity = ARGV[3 * i] + 0, ARGV[3 * i + 1] + 0
    if level + charges * charge > capacity then
      charges = math.max(0, floor((capacity - level) / charge))
    end
  end
end

-- Always SET here: where memory is full the first one fails, and nothing is charged.
local function write(key, drain, level, block)
  local ttl = ceil(level / drain)
  local rest = ttl * drain - level
  if block then rest = -1 - rest end
  call('SET', key, format('%d', rest), 'PX', format('%d', ttl))
end

local word = ARGV[3 * #KEYS + 2]
local block = word == 'block'
for i, key in ipairs(KEYS) do
  local drain, charge, capacity = ARGV[3 * i - 1] + 0, ARGV[3 * i] + 0, ARGV[3 * i + 1] + 0
  local level = levels[i]
  if word == 'reset' then
    call('DEL', key)
  elseif block and level >= charge then -- as it is, but marked: level may be cut to exact
    call('SET', key, format('%d', -1 - rests[i]), 'PX', format('%d', ttls[i]))
  elseif block then
    write(key, drain, charge, true)
  elseif charges > 0 then
    write(key, drain, level + charges * charge)
  elseif charges < 0 and level > 0 and level < exact and not (blocked[i] and level > capacity - charge) then
    level = level + charges * charge
    if level > 0 then
      write(key, drain, level)
    else
      call('DEL', key)
    end
  end
end
return #KEYS == 1 and levels[1] or levels
