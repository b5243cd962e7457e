-- Changes of a token bucket that tenants share, other than a take. The function decide of token buckets (see
-- decide.lua) precedes them, and fast/tenants.lua follows: it documents KEYS, ARGV, the reply and the state,
-- and says why expiry loses nothing.
--
-- A give, a return and a charge also change what the tenant holds. A reset gives back what it holds; without
-- a tenant it is of the whole bucket. It voids what was taken before it, by any tenant.

local keys, token = {unpack(KEYS, 1, #KEYS - 2)}, kind.token()
kind.token = token

-- read returns the level of the bucket.
local function read()
  return token.read({key = KEYS[1], drain = ARGV[4] + 0, cost = ARGV[5] + 0, limit = ARGV[6] + 0})
end

-- look fails if a key cannot be read.
local function look()
  read()
  local known = call('HMGET', KEYS[#KEYS - 1], 't')[1]
  if known and not match(known, '^%d+ %d+ %d+ %d+$') then error('the value is not that of totals') end
  call('ZRANGEBYSCORE', KEYS[#KEYS], '0', '0', 'LIMIT', 0, 1)
end

if ARGV[1] == 'reset' and (#ARGV == 6 or not pcall(look)) then
  call('UNLINK', KEYS[#KEYS - 1], KEYS[#KEYS])
  decide(keys, ARGV)
  return {0}
end

-- change makes the change of a tenant, which holds so many units of the bucket, and returns the level after it.
function change(units)
  if ARGV[1] == 'reset' then
    decide(keys, {'clear', format('%d', units), ARGV[3], ARGV[4], ARGV[5], ARGV[6]})
  else
    decide(keys, ARGV)
  end
  return read()
end
