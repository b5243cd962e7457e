-- Sets and ends overrides of limits, all or none. Of more than a call changes, the first call counts all.
--
-- KEYS[1]  the overrides: a hash of texts by name; the field "" is the stamp of the last change
-- KEYS[2]  a sorted set of their names by the Unix milliseconds when they end
-- KEYS[3]  the latest changes: a sorted set of names and stamps by the turn of their last change, its names before
--          its stamp. Who knows a stamp that is there finds what has changed since.
-- ARGV[1]  what no other change has, without "|", which each name has
-- ARGV[2]  how many overrides there may be
-- ARGV[3]  how many members KEYS[3] keeps
-- ARGV[4]  how many of the following overrides are changed: later calls change the others
-- ARGV[5…] of each override the name, the text, or "" to end it, and the Unix milliseconds when it ends
--
-- Reply: the stamp of this change, its turn and ARGV[1]; or, and nothing was changed, "" if there would be too many,
-- "-" if KEYS[2] lacks some: whoever reads this adds them, and calls again
--
-- State: all keys expire an hour after the last override ends. Redis' clock says which have ended; a call
--        removes 200 of these, and 1,000 if that makes room. Redis may evict
-- KEYS[2] alone. Without KEYS[3] processes read all overrides.

local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local count = redis.call('HLEN', KEYS[1]) - redis.call('HEXISTS', KEYS[1], '')
if redis.call('ZCARD', KEYS[2]) < count then return '-' end
local most = count + (#ARGV - 4) / 3 > tonumber(ARGV[2]) and 1000 or 200
local ended = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now), 'LIMIT', 0, most)
if #ended > 0 then
  redis.call('HDEL', KEYS[1], unpack(ended))
  redis.call('ZREM', KEYS[2], unpack(ended))
end

local names, own, set, ends, gone, more = {}, ARGV[4] * 3 + 4, {}, {}, {}, 0
for i = 5, #ARGV, 3 do
  names[#names + 1] = ARGV[i]
  if ARGV[i + 1] ~= '' then more = more + 1 end
  if i > own then -- a later call's
  elseif ARGV[i + 1] == '' then
    gone[#gone + 1] = ARGV[i]
  else
    set[#set + 1], set[#set + 2] = ARGV[i], ARGV[i + 1]
    ends[#ends + 1], ends[#ends + 2] = ARGV[i + 2], ARGV[i]
  end
end
for _, text in ipairs(redis.call('HMGET', KEYS[1], unpack(names))) do
  if text then more = more - 1 end
end
count = redis.call('HLEN', KEYS[1]) - redis.call('HEXISTS', KEYS[1], '')
if more > 0 and count + more > tonumber(ARGV[2]) then return '' end

local last = redis.call('HGET', KEYS[1], '') or ''
local turn = tonumber(string.match(last, '^(%d+) ') or 0) or 0
if turn > 2 ^ 52 then turn = 0 end
if not redis.call('ZSCORE', KEYS[3], last) then -- nobody knows what came before
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1)
end
if #gone > 0 then
  redis.call('HDEL', KEYS[1], unpack(gone))
  redis.call('ZREM', KEYS[2], unpack(gone))
end
if #set > 0 then
  redis.call('HSET', KEYS[1], unpack(set))
  redis.call('ZADD', KEYS[2], unpack(ends))
end
local changes = {}
for i = 1, tonumber(ARGV[4]) do
  changes[#changes + 1], changes[#changes + 2] = string.format('%.0f', turn + 1), names[i]
end
redis.call('ZADD', KEYS[3], unpack(changes))
local after = string.format('%.0f', turn + 2)
local stamp = after .. ' ' .. ARGV[1]
redis.call('HSET', KEYS[1], '', stamp)
redis.call('ZADD', KEYS[3], after, stamp)
redis.call('ZREMRANGEBYRANK', KEYS[3], 0, string.format('%.0f', -1 - ARGV[3]))
local expiry = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or now
expiry = string.format('%.0f', expiry + 3600000)
for i = 1, 3 do redis.call('PEXPIREAT', KEYS[i], expiry) end
return stamp
