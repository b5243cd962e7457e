-- Publishes the policies that a process serves.
--
-- KEYS[1]  a hash of policies, each as a text, by their names: different texts have different names
-- KEYS[2]  a sorted set of these names by the Unix milliseconds when they were last published
-- KEYS[3]  a sorted set of name, space and process by the Unix milliseconds of its last publication
-- ARGV[1]  the process, without a space
-- ARGV[2]  the milliseconds for which a publication holds
-- ARGV[3]  how many policies there may be
-- ARGV[4]  how many members KEYS[3] may have
-- ARGV[5…] of each policy the name and the text
--
-- Reply: how many policies were published, the others being too many
--
-- State: all keys expire when nothing is published any more. Expiry loses nothing: processes publish again. Redis'
-- clock says when: the clocks of processes differ.

local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local oldest = string.format('%.0f', now - ARGV[2])
now = string.format('%.0f', now)
local gone = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', oldest, 'LIMIT', 0, 500)
if #gone > 0 then
  redis.call('HDEL', KEYS[1], unpack(gone))
  redis.call('ZREM', KEYS[2], unpack(gone))
end
gone = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', oldest, 'LIMIT', 0, 500)
if #gone > 0 then redis.call('ZREM', KEYS[3], unpack(gone)) end

local policies, members = tonumber(ARGV[3]), tonumber(ARGV[4])
local published = 0
for i = 5, #ARGV, 2 do
  local member = ARGV[i] .. ' ' .. ARGV[1]
  if (redis.call('ZCARD', KEYS[2]) < policies or redis.call('ZSCORE', KEYS[2], ARGV[i])) and
    (redis.call('ZCARD', KEYS[3]) < members or redis.call('ZSCORE', KEYS[3], member)) then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    redis.call('ZADD', KEYS[2], now, ARGV[i])
    redis.call('ZADD', KEYS[3], now, member)
    published = published + 1
  end
end
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
return published
