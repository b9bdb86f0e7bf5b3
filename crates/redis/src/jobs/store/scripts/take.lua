-- Sweeps a partition: what a worker lost comes again or is dead, and up to `wanted` jobs are claimed that
-- come due.
-- It looks at 100 entries at most, and answers with as many bytes of payload as it is told at most. What has
-- more than that has its payload read by fetch.lua, and what has more than `largest` is not delivered.
-- It is told how many jobs it may claim, and how many up to one that is not due; by how many attempts a job
-- is judged that has none stored; whether an earlier call may have been lost; the largest payload, how many
-- bytes of payload the answer may have, and the name under which the worker listens, which is empty if it
-- does not. Returns Redis' time; when the next job is due and when the next lease ends, nothing where there
-- is none, and for a worker that others tell; 1 where this call is remembered; "listed" where the worker is
-- known as one that has room, or "few" if it is one of few that are idle; then a list of the claims, each
-- with its id, payload, the size of that, attempts so far, due time, and 1 if it was delivered or has failed
-- before; and a list of the jobs that cannot be delivered, each with its id and the reason.
local wanted, wanted_ahead, ahead, lease, own_max_attempts, resent, largest, bytes_left, worker = unpack(ARGV, 3)
wanted, wanted_ahead, ahead, lease, own_max_attempts = tonumber(wanted), tonumber(wanted_ahead), tonumber(ahead), tonumber(lease), tonumber(own_max_attempts)
largest, bytes_left, resent = tonumber(largest), tonumber(bytes_left), resent == '1'
local stored, listed, claims, refused = 0, '', {}, {}

-- The error of a job whose worker has died or was cut off, or that has taken longer than it may.
local RAN_OUT = 'its lease ran out'

local function first(set)
  local score = call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
  return score and score ~= 'inf' and exact(score)
end

if is_late then return refuse() end

-- The first ends of leases, and up to 20 that have ended.
local first_job, first_claim = first(running), first(claimed)

local function ended(set, first_end)
  if not first_end or tonumber(first_end) > now then return {} end
  return call('ZRANGE', set, '-inf', exact(now), 'BYSCORE', 'LIMIT', 0, 20)
end

local ended_jobs, ended_claims = ended(running, first_job), ended(claimed, first_claim)

-- How long a worker counts as there that does not look again: it does so every five seconds.
local SEEN_FOR = 5500000
-- How much later than those that watch the first of few idle workers looks, and each further one.
local OVERDUE, APART = 400000, 50000

-- Removes the workers that watch and have no connection any more, and returns how many are left. In a cluster
-- it may be to another node.
local function remove_dead_watchers()
  local here = call('ZRANGE', watching, exact(now), '(+inf', 'BYSCORE', 'LIMIT', 0, WATCHERS)
  local gone = {}
  for _, other in ipairs(here) do
    local known = redis.pcall('PUBSUB', 'NUMSUB', channel .. ':' .. other)
    if known[2] == 0 then gone[#gone + 1] = other end
  end
  if not gone[1] or is_cluster() then return #here end
  call('ZREM', watching, unpack(gone))
  return #here - #gone
end

-- Records whether the worker has room for more than it was given. Returns whether it watches, or does not
-- listen; if it is one of few that are idle, also by how much later than those that watch it looks.
local function enlist(given)
  if worker == '' then return true end
  if given < wanted then
    for _, set in ipairs(idle_workers > 0 and { watching, idle } or { watching }) do
      local gone = call('ZRANGE', set, '-inf', exact(now), 'BYSCORE', 'LIMIT', 0, 20)
      if gone[1] then call('ZREM', set, unpack(gone)) end
    end
    listed = 'listed'
    if call('ZSCORE', watching, worker) or remove_dead_watchers() < WATCHERS then
      call('ZADD', watching, exact(now + SEEN_FOR), worker)
      call('ZREM', idle, worker)
      return true
    end
    call('ZADD', idle, exact(now + SEEN_FOR), worker)
    local others = call('ZCOUNT', idle, '-inf', '(+inf') - 1
    if others >= FEW then return false end
    listed = 'few'
    return false, OVERDUE + others * APART
  end
  if wanted > 0 and call('ZCOUNT', idle, '-inf', '(+inf') == 0 then
    -- Nobody could watch in its place. It counts as there again, as it has looked.
    if call('ZSCORE', watching, worker) then
      call('ZADD', watching, exact(now + SEEN_FOR), worker)
      listed = 'listed'
    end
  else
    local next_due = first(due)
    unlist(worker, next_due and tonumber(next_due) <= now and WATCHERS or 0)
  end
  return true
end

-- Returns the answer, which is made last: sweeping and claiming change it. The clock is read again, since a
-- worker counts from the moment at which the answer arrives, and what has passed by then makes its jobs late.
local function finish(given)
  local watches, later = enlist(given)
  local next_due = first(due)
  -- Where no more jobs may run, the end of one wakes those that watch.
  if next_due and tonumber(next_due) <= now + ahead and left_in(running, claimed) == 0 then next_due = nil end
  if ended_jobs[1] then first_job = first(running) end
  if ended_claims[1] or is_resent or given > 0 then first_claim = first(claimed) end
  local next_end = first_claim or first_job
  if first_claim and first_job and tonumber(first_job) < tonumber(first_claim) then next_end = first_job end
  local function told(at)
    if not at or watches then return at or false end
    return later and exact(math.max(at, now) + later) or false
  end
  return { exact(clock()), told(next_due), told(next_end), stored, listed, claims, refused }
end

local function add(list, ...)
  for _, value in ipairs({ ... }) do list[#list + 1] = value end
end

local function add_job(id, size, attempts, at, max_attempts)
  local body = ''
  if size <= bytes_left then
    body = call('HGET', payload, id)
    bytes_left = bytes_left - size
  end
  add(claims, id, body, exact(size), attempts, at, (max_attempts ~= NEVER or attempts ~= '0') and '1' or '0')
end

local has_dead = call('ZCARD', dead) > 0
local wrong = wrong_type({ due, watching }, { state, payload, repeats })
if wrong then return wrong end

-- A take that is sent again answers with what it claimed at first and still holds.
if is_resent then
  local ids = cmsgpack.unpack(last_answer)
  for _, id in ipairs(ids) do
    local held_by, attempts, at, max_attempts = read(id)
    if held_by == name and call('HEXISTS', payload, id) == 1 then
      call('ZADD', claimed, 'XX', exact(now + lease), id)
      add_job(id, call('HSTRLEN', payload, id), attempts, at, max_attempts)
    end
  end
  stored = 1
  return finish(#ids)
end

local returned = 0
for _, id in ipairs(ended_jobs) do
  local held_by, attempts, at, max_attempts = read(id)
  -- A job whose state is lost is judged by what this worker was told.
  local allowed = tonumber(max_attempts) or own_max_attempts
  local waits = true
  if string.sub(held_by, 1, 1) == '!' then
    waits = end_cancelled(running, id)
  elseif tonumber(attempts) >= allowed then
    waits = bury(running, id, attempts, at, RAN_OUT)
  else
    to_due(running, id, attempts, at, max_attempts, RAN_OUT)
  end
  if waits then returned = returned + 1 end
end
for _, id in ipairs(ended_claims) do
  local _, attempts, at, max_attempts, failure = read(id)
  to_due(claimed, id, attempts, at, max_attempts, failure)
  returned = returned + 1
end

-- Why an id is none of ours.
local function foreign(id)
  if #id > 1024 then return 'its id has ' .. #id .. ' bytes' end
  if not string.find(id, '[\128-\255]') then return nil end
  -- Each valid sequence leaves a space, so that what stands around it does not become one.
  for _, sequence in ipairs({
    '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
    '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
    '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
  }) do
    id = string.gsub(id, sequence, ' ')
  end
  return string.find(id, '[\128-\255]') and 'its id is not UTF-8'
end

local gone, ids = {}, {}
local found = {}
local free = math.min(wanted, 60)
if free > 0 then free = math.min(free, left_in(running, claimed)) end
if free > 0 then
  found = call('ZRANGE', due, '-inf', exact(now + ahead), 'BYSCORE', 'LIMIT', 0, free, 'WITHSCORES')
end
if found[1] then
  local names = {}
  for entry = 1, #found, 2 do names[#names + 1] = found[entry] end
  local states = call('HMGET', state, unpack(names))
  local scores, after = {}, {}
  local till = exact(now + lease)
  local whole = bytes_left
  for n, id in ipairs(names) do
    local _, attempts, _, max_attempts, failure = parse(states[n])
    local score = tonumber(found[2 * n])
    -- What is not due yet leaves room for what is.
    if score > now and n > wanted_ahead then break end
    local at = exact(score)
    local size = call('HSTRLEN', payload, id)
    local why = foreign(id)
    if why then
      bury(due, id, attempts, at, why)
      add(refused, string.sub(id, 1, 64), why)
    elseif size > largest then
      why = 'its payload of ' .. size .. ' bytes is larger than the ' .. largest .. ' bytes that the worker accepts'
      fail(due, id, attempts, at, own_max_attempts, why)
      add(refused, id, why)
    elseif size > bytes_left and size <= whole then
      -- The next take has room for it.
      break
    else
      gone[#gone + 1] = id
      -- One whose payload Redis has lost is lost.
      if size > 0 or call('HEXISTS', payload, id) == 1 then
        ids[#ids + 1] = id
        scores[#scores + 1] = till
        scores[#scores + 1] = id
        after[#after + 1] = id
        after[#after + 1] = state_of(name, attempts, at, max_attempts, failure)
        add_job(id, size, attempts, at, max_attempts)
      else
        call('HDEL', state, id)
        call('HDEL', repeats, id)
      end
    end
  end
  if scores[1] then
    call('ZADD', claimed, unpack(scores))
    call('HSET', state, unpack(after))
  end
  if gone[1] then call('ZREM', due, unpack(gone)) end
end

if has_dead or died then trim_dead() end
-- A take that found nothing has nothing to repeat, unless an earlier call of it may still be under way.
if #ids > 0 or resent then
  remember(cmsgpack.pack(ids))
  stored = 1
end
local answer = finish(#ids)
-- What came back and is not taken here is for the others.
if returned > 0 then
  local next_due = first(due)
  if next_due and tonumber(next_due) <= now then hint() end
end
return answer
