-- Sets and ends overrides of limits, all or none.
--
-- KEYS[1]  the overrides: a hash of texts by name; the field "" is the stamp of the last change
-- KEYS[2]  a sorted set of their names by the Unix milliseconds when they end
-- ARGV[1]  the stamp of this change; stamps do not repeat
-- ARGV[2]  how many overrides there may be
-- ARGV[3…] of each override the name, the text, or "" to end it, and the Unix milliseconds when it ends
--
-- Reply: 1, or 0 if there would be too many, and nothing was changed
--
-- State: both keys expire an hour after the last override ends. Redis' clock says which have ended.

local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
if #redis.call('ZRANGE', KEYS[2], 0, 0) == 0 then -- Redis may have evicted it alone
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local ends = string.match(all[i + 1], '"until":(%d+)')
    if all[i] ~= '' and ends then redis.call('ZADD', KEYS[2], ends, all[i]) end
  end
end
local ended = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now), 'LIMIT', 0, 1000)
if #ended > 0 then
  redis.call('HDEL', KEYS[1], unpack(ended))
  redis.call('ZREM', KEYS[2], unpack(ended))
end

local more = 0
for i = 3, #ARGV, 3 do
  local there = redis.call('HEXISTS', KEYS[1], ARGV[i])
  if ARGV[i + 1] == '' then more = more - there else more = more + 1 - there end
end
local count = redis.call('HLEN', KEYS[1]) - redis.call('HEXISTS', KEYS[1], '')
if more > 0 and count + more > tonumber(ARGV[2]) then return 0 end

for i = 3, #ARGV, 3 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
    redis.call('ZREM', KEYS[2], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    redis.call('ZADD', KEYS[2], ARGV[i + 2], ARGV[i])
  end
end
redis.call('HSET', KEYS[1], '', ARGV[1])
local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or now
last = string.format('%.0f', last + 3600000)
redis.call('PEXPIREAT', KEYS[1], last)
redis.call('PEXPIREAT', KEYS[2], last)
return 1
